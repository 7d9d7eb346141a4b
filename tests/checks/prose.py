"""Paragraphs, table cells and ids of a Markdown page, for tests that a page can be read."""

import re

from checks.chapters import MOST_IN_A_CELL

MOST_IN_A_PARAGRAPH = 90  # words
# Of a rule, a proof or a known difference, abbreviated or not: SPY-VOL-1, ANY-5, PRV-VOL.
ID = re.compile(r"(?<![\w-])(?:[A-Z][A-Z0-9]+(?:-[A-Z0-9]+)*-\d+[A-Z]?(?!\w)|PRV(?:-[A-Z0-9]+)+)")
# What stands beside a sentence: a bold label in front, and lists of ids behind.
LISTED = rf"{ID.pattern}(?: to \w+)?(?: \([a-z ]+\))?"
LISTS = rf"(?:(?:Rule|Proof|Known difference)s?: {LISTED}(?:[,;] {LISTED})*\. ?)+"
BESIDE = re.compile(rf"^(?:[-*] |\d+\. )?\*\*[^*]*\*\*|(?:^|(?<=[.:?)*] )){LISTS}$")
# A table that is made from records, with the list of its long cells.
MADE = re.compile(r"<!-- ([\w ,.-]+) -->.*?<!-- end of \1 -->", re.DOTALL)
IN_CELL = re.compile(rf"[\w*`)] (?={ID.pattern})")
CODE = re.compile(r"`[^`]*`|\]\([^)]*\)")
# Blocks that are no prose: comments, fenced code and indented code.
NO_PROSE = re.compile(
    r"<!--.*?-->|^```.*?^```$|(?<=\n\n)(?: {4}[^\n]*\n)+", re.DOTALL | re.MULTILINE
)


def words(text: str) -> int:
    """The number of words, as `wc -w` counts them."""
    return len(text.split())


def ids_in(text: str) -> list[str]:
    """The ids outside of code and addresses."""
    return ID.findall(CODE.sub("", text))


def cells(text: str) -> list[str]:
    """The cells of all tables, heads included."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [cell.strip() for row in rows for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


def paragraphs(text: str) -> list[str]:
    """Paragraphs and items of lists, each on one line."""
    prose = re.sub(r"^(?:\||#).*$", "", NO_PROSE.sub("", text), flags=re.MULTILINE)
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", prose)
    return [" ".join(part.split()) for part in parts if part.strip()]


def long_paragraphs(text: str) -> list[str]:
    """Paragraphs with too many words."""
    return [part for part in paragraphs(text) if words(part) > MOST_IN_A_PARAGRAPH]


def long_cells(text: str) -> list[str]:
    """Cells of tables with too many characters."""
    return [cell for cell in cells(text) if len(cell) > MOST_IN_A_CELL]


def with_ids_inside(text: str) -> list[str]:
    """Paragraphs, and cells of tables, that have ids within their sentences.

    In a cell an id may stand in front, or behind a comma, a semicolon, a colon or a bracket.
    """
    within = [part for part in paragraphs(MADE.sub("", text)) if ids_in(BESIDE.sub("", part))]
    return within + [cell for cell in cells(text) if IN_CELL.search(CODE.sub("``", cell))]
