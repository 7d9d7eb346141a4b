"""Chapters are readable: short paragraphs and cells, and ids beside the sentences, not in them."""

import re
from pathlib import Path

import pytest

from checks.chapters import CHAPTERS, chapter_path
from checks.registry import POLICIES
from tests.checks.prose import (
    cells,
    long_cells,
    long_paragraphs,
    paragraphs,
    with_ids_inside,
    words,
)

README = Path(__file__).parents[2] / "README.md"
PAGES = [README, *sorted(CHAPTERS.rglob("*.md"))]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)


def test_every_chapter_is_among_the_pages() -> None:
    named = {chapter_path(policy) for policy in POLICIES}
    named |= {CHAPTERS / "spyre-in-one-page.md", CHAPTERS / "releases" / "sendnn-pausing.md"}

    assert named <= set(PAGES)
    assert len(PAGES) > 25


@each_page
def test_a_page_has_prose_and_no_open_block_that_would_hide_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    fences = re.findall(r"^\s*```", text, flags=re.MULTILINE)

    assert len(fences) % 2 == 0
    assert "<!--" not in re.sub(r"<!--.*-->", "", text)  # a comment is one line
    assert len(paragraphs(text)) >= 3
    assert sum(map(words, paragraphs(text))) >= 60


@each_page
def test_no_paragraph_is_long(page: Path) -> None:
    assert long_paragraphs(page.read_text(encoding="utf-8")) == []


@each_page
def test_no_cell_of_a_table_is_long(page: Path) -> None:
    assert long_cells(page.read_text(encoding="utf-8")) == []


@each_page
def test_no_id_stands_inside_a_sentence(page: Path) -> None:
    assert with_ids_inside(page.read_text(encoding="utf-8")) == []


def test_tables_are_read() -> None:
    text = chapter_path("spyre").read_text(encoding="utf-8")

    assert len(cells(text)) > 500


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
        "The lemma (ANY-5) says so.",
        "An assertion ends the engine (VLZ-10).",
        "| statement | the slot that SPY-ADM-1 counted |",
        "| statement | `key` of SPY-ADM-1 |",
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
        "| statement | SPY-VOL-1, BLK-3 |",
        "| statement | SPY-VOL-1 refuted, released; for the rest (SPY-VOL-2) |",
        "It ends there. Known difference: VLZ-10.",
        "    code  SPY-VOL-1",
    ],
)
def test_an_id_beside_a_sentence_is_none(text: str) -> None:
    assert with_ids_inside(f"Before.\n\n{text}\n") == []
