"""Chapters in the book: wide tables become lists, and terms link to their pages."""

import pytest
from markdown import markdown

from checks.book.argument import drawn_arguments
from checks.book.chapters import as_page, chapter_pages
from checks.book.source import folded, section, sections, slug, table

LONG = "a sentence that goes on and on, " * 5


def rendered(text: str) -> str:
    return markdown(text, extensions=["tables", "checks.book.links"])


def test_a_row_with_a_long_cell_becomes_a_definition() -> None:
    page = as_page(f"| text | rule | verdict |\n| --- | --- | --- |\n| {LONG} | A-1 | holds |\n")

    assert page.splitlines() == [
        "",
        LONG.strip(),
        ":   **rule:** A-1",
        "",
        ":   **verdict:** holds",
        "",
    ]


def test_a_short_table_stays_one() -> None:
    text = "| a | b |\n| --- | --- |\n| 1 | 2 |\n"
    assert as_page(text) == text


def test_the_table_of_rules_keeps_sentence_and_verdict() -> None:
    page = as_page("<!-- rules -->\n| rule |\n| --- |\n| SPY-VOL-1 | x |\n<!-- end of rules -->\n")

    assert "| SPY-VOL-1 | Batch size times max-tkv never exceeds the limit" in page
    assert "| refuted |" in page


@pytest.mark.parametrize("page", [*chapter_pages()], ids=lambda page: page.path)
def test_no_cell_of_a_chapter_is_long(page: object) -> None:
    lines = [line for line in getattr(page, "text", "").splitlines() if line.startswith("| ")]
    ruled = [line for line in lines if not line.startswith(("| rule |", "| proof |"))]

    others = [line for line in ruled if not line[2:5].isupper()]
    assert max((len(cell) for line in others for cell in line.split(" | ")), default=0) <= 112


def test_ids_and_words_are_links_where_they_are_met_first() -> None:
    page = rendered("# A page\n\nSPY-VOL-1 and volume, the volumes; PRV-VOL-1, `SPY-VOL-1`, NO-1.")

    assert page.count('<a class="id" href="/rules/SPY-VOL-1.md">SPY-VOL-1</a>') == 1
    assert page.count('<a class="id" href="/proofs/PRV-VOL-1.md">') == 1
    assert page.count('<a class="word" href="/chapters/glossary.md#volume">volume</a>') == 1
    assert "<code>SPY-VOL-1</code>, NO-1." in page


def test_a_page_does_not_lead_to_itself() -> None:
    assert "<a" not in rendered("# SPY-VOL-1\n\nSPY-VOL-1 is this.")


def test_a_flowchart_is_drawn_with_an_arrow_for_each_of_its() -> None:
    chart = '```mermaid\nflowchart TD\n    A["one"] --> B["two"]\n    B --> C["three"]\n```\n'
    drawn = drawn_arguments(chart)

    assert drawn.count('class="arrow"') == 2
    assert drawn.count("<rect") == 3
    assert 'aria-label="two, from one; three, from two"' in drawn


def test_markdown_is_written_as_it_is_read() -> None:
    assert table(("a", ">b"), [("x|y", 1)]) == "| a | b |\n| :-- | --: |\n| x\\|y | 1 |"
    assert table(("a",), []) == ""
    assert section("Title") == ""
    assert section("Title", "text", searched=False).startswith("## Title { data-search-exclude }")
    assert sections("one", "", "two") == "one\n\ntwo\n"
    assert folded("t", "one\n\ntwo").splitlines() == ['??? note "t"', "", "    one", "", "    two"]
    assert slug("vllm-v0, released: caching") == "vllm-v0-released-caching"
