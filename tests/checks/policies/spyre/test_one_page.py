"""Spyre in one page: its figures are what the reference does with the requests of the page."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from checks.book.pictures import examples, steps_of
from checks.chapters import CHAPTERS, with_lines
from spec.spyre.records import Chunk
from spec.spyre.state import PADDING_BLOCK
from tests.checks.prose import ids_in, words

PAGE = (CHAPTERS / "spyre-in-one-page.md").read_text(encoding="utf-8")
STEPS: Any = [*steps_of(examples()["one-page"])]
PREFIX: Any = [*steps_of(examples()["one-page-prefix"])]
BLOCK, CHUNK = 4, 8
MOST_WORDS = 900  # outside the figures
BECAUSE = {
    "SPY-PRI-3": "a prefill step came before",
    "SPY-VOL-4": "the limit would be exceeded",
    None: "",
}


def chunk_line(chunk: Chunk, number: int) -> str:
    """A chunk of the padded prompt: left padding, token numbers, right padding."""
    tokens = chunk.chunks * CHUNK - chunk.left_padding - chunk.right_padding
    places = ["-"] * chunk.left_padding + [str(token) for token in range(tokens)]
    places += ["."] * chunk.right_padding
    return f"chunk {number}:  {' '.join(places[number * CHUNK : (number + 1) * CHUNK])}"


def chunk_lines() -> Iterator[str]:
    chunks = [step.chunk for step in STEPS if step.chunk and step.chunk.id == "B"]
    yield "```text"
    yield from (chunk_line(chunk, chunk.chunk) for chunk in chunks)
    yield "```"


def step_lines() -> Iterator[str]:
    yield "| step | kind | rows as request:tkv | tkv | volume | the queue waits because |"
    yield "| --- " * 6 + "|"
    for number, step in enumerate(STEPS):
        chunk = step.chunk
        rows = " ".join(f"{row.id}:{row.tkv}" for row in step.batch)
        if chunk:
            rows = f"{chunk.id}, tokens {chunk.start} to {chunk.end - 1}"
        because = BECAUSE[step.refusal]
        cells = (number, step.kind, rows, step.tkv, step.volume, because)
        yield f"| {' | '.join(map(str, cells))} |".replace("|  |", "| |")


def row_lines() -> Iterator[str]:
    yield "```text"
    for number in (6, 7):
        for index, row in enumerate(STEPS[number].batch):
            places = ["-"] * row.left_padding + [str(token) for token in range(row.computed)]
            places += ["."] * (-len(places) % BLOCK)
            blocks = (places[at : at + BLOCK] for at in range(0, len(places), BLOCK))
            label = "" if index else f"step {number}:"
            yield f"{label:<9}{row.id} | {' | '.join(' '.join(block) for block in blocks)}"
    yield "```"


def redirected_tokens(chunk: Chunk) -> int:
    """Cached tokens that the chunk computes again, and writes to block 0 instead."""
    padding = max(chunk.left_padding - chunk.chunk * CHUNK, 0)
    return chunk.writes.count(PADDING_BLOCK) * BLOCK - padding


def prefix_lines() -> Iterator[str]:
    chunks = {
        step.chunk.chunk: step.chunk for step in PREFIX if step.chunk and step.chunk.id == "Y"
    }
    lines = [chunk_line(chunks[max(chunks)], number) for number in range(max(chunks) + 1)]
    yield "```text"
    for number, line in enumerate(lines):
        fate = "computed" if number in chunks else "skipped"
        if number in chunks and (tokens := redirected_tokens(chunks[number])):
            first = chunks[number].start
            fate += f"; tokens {first} to {first + tokens - 1} are cached and written to block 0"
        yield f"{line:<{max(map(len, lines))}}  {fate}"
    yield "```"


FIGURES = {"chunks": chunk_lines, "steps": step_lines, "rows": row_lines, "prefix": prefix_lines}


def test_the_page_has_these_figures_and_no_others() -> None:
    assert re.findall(r"<!-- figure: (\w+) -->", PAGE) == [*FIGURES]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_of_the_page_is_what_the_reference_does(name: str) -> None:
    assert with_lines(PAGE, f"figure: {name}", FIGURES[name]()) == PAGE


def test_the_page_is_short_and_names_no_rule() -> None:
    written = re.sub(r"<!-- (figure: \w+) -->.*?<!-- end of \1 -->", "", PAGE, flags=re.DOTALL)

    assert 600 < words(written) <= MOST_WORDS
    assert ids_in(PAGE) == []
