"""Chapters are readable: short paragraphs and cells, and ids beside the sentences, not in them."""

import re
from pathlib import Path

import pytest

from checks.chapters import CHAPTERS, MOST_IN_A_CELL

MOST_IN_A_PARAGRAPH = 90  # words
ID = re.compile(r"(?<![\w-])(?:(?:SPY|NANO|V0|V1)-[A-Z]+-\d+|(?:BLK|LIF)-\d+|PRV(?:-[A-Z0-9]+)+)")
# What stands beside a sentence: a bold label in front, and lists of ids behind.
LISTED = rf"{ID.pattern}(?: to \w+)?(?: \([a-z ]+\))?"
LISTS = rf"(?:(?:Rules?|Proofs?): {LISTED}(?:[,;] {LISTED})*\. ?)+"
BESIDE = re.compile(rf"^(?:[-*] |\d+\. )?\*\*[^*]*\*\*|(?:^|(?<=[.:?)*] )){LISTS}$")
# A table that is made from records, with the list of its long cells.
MADE = re.compile(r"<!-- ([\w ,.-]+) -->.*?<!-- end of \1 -->", re.DOTALL)
CODE = re.compile(r"`[^`]*`|\]\([^)]*\)")
# Blocks that are no prose: comments, fenced code and indented code.
NO_PROSE = re.compile(
    r"<!--.*?-->|^```.*?^```$|(?<=\n\n)(?: {4}[^\n]*\n)+", re.DOTALL | re.MULTILINE
)
each_chapter = pytest.mark.parametrize(
    "chapter", sorted(CHAPTERS.glob("*.md")), ids=lambda path: path.stem
)


def cells(text: str) -> list[str]:
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [cell.strip() for row in rows for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


def paragraphs(text: str) -> list[str]:
    """Paragraphs and items of lists, each on one line."""
    prose = re.sub(r"^(?:\||#).*$", "", NO_PROSE.sub("", text), flags=re.MULTILINE)
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", prose)
    return [" ".join(part.split()) for part in parts if part.strip()]


def long_paragraphs(text: str) -> list[str]:
    return [part for part in paragraphs(text) if len(part.split()) > MOST_IN_A_PARAGRAPH]


def long_cells(text: str) -> list[str]:
    return [cell for cell in cells(text) if len(cell) > MOST_IN_A_CELL]


def with_ids_inside(text: str) -> list[str]:
    """Paragraphs that have ids of rules or proofs within their sentences."""
    written = paragraphs(MADE.sub("", text))
    return [part for part in written if ID.search(CODE.sub("", BESIDE.sub("", part)))]


@each_chapter
def test_no_paragraph_is_long(chapter: Path) -> None:
    assert long_paragraphs(chapter.read_text(encoding="utf-8")) == []


@each_chapter
def test_no_cell_of_a_table_is_long(chapter: Path) -> None:
    assert long_cells(chapter.read_text(encoding="utf-8")) == []


@each_chapter
def test_no_id_stands_inside_a_sentence(chapter: Path) -> None:
    assert with_ids_inside(chapter.read_text(encoding="utf-8")) == []


# --- planted violations ---------------------------------------------------------------------------

WORDS = "word " * 91


@pytest.mark.parametrize("text", [WORDS, f"- short\n- {WORDS}\n", f"1. {WORDS}\n   more\n"])
def test_a_long_paragraph_is_caught(text: str) -> None:
    assert len(long_paragraphs(f"# Title\n\n{text}\n\nend\n")) == 1


@pytest.mark.parametrize("text", [f"    {WORDS}\n", f"```sh\n{WORDS}\n```\n", f"| {WORDS} |\n"])
def test_code_and_tables_are_no_paragraphs(text: str) -> None:
    assert long_paragraphs(f"# Title\n\n{text}\n\nend\n") == []


@pytest.mark.parametrize("before", ["    code\n", "```sh\ncode\n```\n", "<!-- comment -->\n"])
def test_a_long_paragraph_behind_code_is_caught(before: str) -> None:
    assert len(long_paragraphs(f"# Title\n\n{before}\n{WORDS}\n")) == 1


def test_a_long_cell_is_caught() -> None:
    assert long_cells(f"| a | {'x' * 201} |\n| {'x' * 200} | b |\n") == ["x" * 201]


@pytest.mark.parametrize(
    "text",
    [
        "The limit holds (SPY-VOL-1).",
        "- **A label.** BLK-3 holds. Rule: BLK-3.",
        "It is proven by PRV-EXA-5A, for all.\nProof: PRV-EXA-5A.",
        "Rules: SPY-VOL-1. And more text.",
        "It holds. Rule: SPY-VOL-1 says so.",
    ],
)
def test_an_id_inside_a_sentence_is_caught(text: str) -> None:
    assert len(with_ids_inside(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "The limit holds. Rules: SPY-VOL-1, BLK-3.",
        "The limit holds.\nRule: SPY-VOL-1. Proofs: PRV-VOL-1, PRV-LEN-1.",
        "- **V1-BUD-4 and V1-KV-1.** Two requests. Proofs: PRV-ANY-1.",
        "See `lockstep rules SPY-VOL-1`.",
        "| statement | SPY-VOL-1 |",
        "    code  SPY-VOL-1",
    ],
)
def test_an_id_beside_a_sentence_is_none(text: str) -> None:
    assert with_ids_inside(f"Before.\n\n{text}\n") == []
