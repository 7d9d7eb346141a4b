"""The chapters as pages of the book: wide tables become lists, tables of verdicts are shortened."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

from checks.book.argument import drawn_arguments
from checks.book.outward import defect_links, with_commits
from checks.book.source import Page, table
from checks.chapters import CHAPTERS
from checks.evidence import PROVEN, Verdict, recorded, recorded_verdicts
from checks.registry import RULES

_MOST_IN_A_CELL = 110  # characters; a table with a longer cell becomes a list
_MOST_IN_A_ROW = 260
_OF_RECORD = re.compile(r"<!-- (rules|proofs|lemmas) -->\n(.*?)<!-- end of \1 -->\n", re.DOTALL)


def chapter_pages() -> Iterator[Page]:
    """A page for each chapter, and for each defect of a release."""
    for path in sorted(CHAPTERS.rglob("*.md")):
        name = path.relative_to(CHAPTERS).as_posix()
        text = as_page(path.read_text(encoding="utf-8"))
        yield Page(f"chapters/{name}", with_commits(text) + defect_links(path.stem))


def as_page(chapter: str) -> str:
    """The chapter with readable tables and drawn diagrams."""
    shortened = _OF_RECORD.sub(_shortened, chapter)
    return drawn_arguments(_with_lists(shortened))


# --- tables of verdicts ---------------------------------------------------------------------------


def _shortened(match: re.Match[str]) -> str:
    """A generated table reduced to id, sentence and verdict; each row has a page with the rest."""
    ids = re.findall(r"^\| ([A-Z][A-Z0-9-]+) \|", match[2], re.MULTILINE)
    if match[1] == "rules":
        return rules_table(recorded_verdicts(RULES[id_] for id_ in ids))
    return proofs_table(ids)


def rules_table(verdicts: Iterable[Verdict]) -> str:
    """A table row for each rule: its sentence and its verdict in a word."""
    rows = ((verdict.rule.id, verdict.rule.sentence, verdict.word) for verdict in verdicts)
    return table(("rule", "what it says", "verdict"), rows) + "\n"


def proofs_table(ids: Iterable[str]) -> str:
    """A table row for each obligation: its sentence and its verdict."""
    proven = recorded(PROVEN)
    rows = ((id_, proven[id_]["says"], proven[id_]["verdict"]) for id_ in ids)
    return table(("proof", "what it says", "verdict"), rows) + "\n"


# --- wide tables ----------------------------------------------------------------------------------


def _with_lists(chapter: str) -> str:
    """The chapter with each wide table written as a list of its rows."""
    out: list[str] = []
    for is_table, lines in groupby(chapter.splitlines(), lambda line: line.startswith("| ")):
        block = list(lines)
        out += _as_list(block) if is_table and _is_wide(block) else block
    return "\n".join(out) + "\n"


def _is_wide(lines: list[str]) -> bool:
    if _cells(lines[0])[:1] in (["rule"], ["proof"]):  # id, sentence, verdict
        return False
    cells = [len(cell) for line in lines for cell in _cells(line)]
    return max(cells) > _MOST_IN_A_CELL or max(map(len, lines)) > _MOST_IN_A_ROW


def _as_list(lines: list[str]) -> Iterator[str]:
    """A definition for each row: its first cell, and below it the others with column names."""
    columns, rows = _cells(lines[0]), map(_cells, lines[2:])
    yield ""
    for first, *others in rows:
        yield first or "-"
        for name, cell in zip(columns[1:], others, strict=True):
            yield f":   **{name}:** {cell}" if name else f":   {cell}"
            yield ""


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]
