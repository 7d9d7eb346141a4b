"""Layout formulas: the numbers of the text, and tables drawn cell by cell."""

from collections.abc import Sequence
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, composite

from spec.core.blocks import block_count
from spec.spyre.padding import (
    active_chunk,
    batch_width_blocks,
    chunk_count,
    chunk_end,
    chunk_start,
    counted_end,
    last_block_offset,
    left_padding,
    max_tkv,
    padded_length,
    peak_tkv,
    reaches_block_end,
    redirected_blocks,
    reused_blocks,
    right_padding,
    row_left_padding,
    row_tkv,
    skipped_chunks,
)
from tests.spec.drawn import drawn_batch, drawn_tkvs, last_token

# --- the numbers of the text ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "left", "right", "chunks"),
    [
        pytest.param(15, 64, 49, [(0, 15)], id="one chunk behind a block of padding"),
        pytest.param(302, 64, 18, [(0, 64), (64, 192), (192, 302)], id="the first half padding"),
        pytest.param(256, 0, 0, [(0, 128), (128, 256)], id="chunks filled, no padding"),
        pytest.param(257, 64, 63, [(0, 64), (64, 192), (192, 257)], id="a token longer than two"),
    ],
)
def test_prompt_in_blocks_of_64_tokens_and_chunks_of_128(
    length: int, left: int, right: int, chunks: list[tuple[int, int]]
) -> None:
    assert chunk_count(length, 128) == len(chunks)
    assert (left_padding(length, 64, 128), right_padding(length, 64)) == (left, right)
    assert padded_length(length, 128) == left + length + right
    for index, (start, end) in enumerate(chunks):
        assert chunk_start(index, left, 128) == start
        assert chunk_end(index, left, 128, length) == end
        assert active_chunk(start, left, 128) == index


@pytest.mark.parametrize(
    ("layout", "skipped", "reused", "redirected"),
    [
        pytest.param((14, 3, 4, 6), 4, 832 // 64, 1, id="prefix figure: 14 blocks are cached"),
        pytest.param((3, 0, 2, 2), 1, 2, 1, id="last chunk computed though all of it is cached"),
        pytest.param((1, 1, 2, 3), 1, 1, 0, id="padding counts as cached: first chunk skipped"),
        pytest.param((0, 1, 2, 3), 0, 0, 0, id="padding is never reused"),
    ],
)
def test_cached_blocks_that_are_reused_or_redirected(
    layout: tuple[int, int, int, int], skipped: int, reused: int, redirected: int
) -> None:
    """Cached blocks, padding blocks, blocks of a chunk, chunks."""
    assert skipped_chunks(*layout) == skipped
    assert reused_blocks(*layout) == reused
    assert redirected_blocks(*layout) == redirected


# --- the prompt, drawn cell by cell ---------------------------------------------------------------

Cells = list[int | None]  # a prompt position, or padding


def drawn_prompt(length: int, block_size: int, chunk_size: int) -> list[Cells]:
    """The chunks of a prompt: whole blocks, padded on the right, then put behind empty blocks."""
    cells: Cells = list(range(length))
    while len(cells) % block_size:
        cells.append(None)
    while len(cells) % chunk_size:
        cells = [*[None] * block_size, *cells]
    return [cells[start : start + chunk_size] for start in range(0, len(cells), chunk_size)]


@composite
def prompts(draw: DrawFn) -> tuple[int, int, int]:
    """Length, block and chunk size."""
    size = draw(st.integers(1, 6))
    return draw(st.integers(1, 40)), size, size * draw(st.integers(1, 4))


@given(prompts())
def test_chunks_are_those_of_the_drawn_prompt(prompt: tuple[int, int, int]) -> None:
    length, size, chunk_size = prompt
    chunks = drawn_prompt(length, size, chunk_size)
    cells = list(chain.from_iterable(chunks))
    padding = left_padding(length, size, chunk_size)

    assert chunk_count(length, chunk_size) == len(chunks)
    assert padded_length(length, chunk_size) == len(cells)
    assert padding == cells.index(0)
    assert right_padding(length, size) == cells[::-1].index(length - 1)
    for index, chunk in enumerate(chunks):
        positions = [cell for cell in chunk if cell is not None]
        assert chunk_start(index, padding, chunk_size) == positions[0]
        assert chunk_end(index, padding, chunk_size, length) == positions[-1] + 1
        assert active_chunk(positions[0], padding, chunk_size) == index
        for ahead in (0, 1, length):  # tokens counted beyond those before the chunk
            counted = counted_end(positions[0] + ahead, index, padding, chunk_size, length)
            assert counted == min(positions[-1] + 1 + ahead, length)


@given(prompts(), st.data())
def test_skipped_are_the_leading_chunks_without_a_block_to_compute_but_never_the_last(
    prompt: tuple[int, int, int], data: st.DataObject
) -> None:
    length, size, chunk_size = prompt
    hit = data.draw(st.integers(0, block_count(length, size)), label="cached blocks")
    *before_last, _last = drawn_prompt(length, size, chunk_size)
    skipped = 0
    for cells in before_last:
        if any(cell is not None and cell >= hit * size for cell in cells):
            break
        skipped += 1
    reused = {cell // size for cells in before_last[:skipped] for cell in cells if cell is not None}

    padding_blocks = left_padding(length, size, chunk_size) // size
    layout = (hit, padding_blocks, chunk_size // size, len(before_last) + 1)

    assert skipped_chunks(*layout) == skipped
    assert reused_blocks(*layout) == len(reused)
    assert redirected_blocks(*layout) == hit - len(reused)


# --- the decode batch, drawn cell by cell ---------------------------------------------------------


batches = st.lists(st.integers(1, 30), min_size=1, max_size=6)


@given(batches, st.integers(1, 6))
def test_rows_are_those_of_the_drawn_batch(lengths: list[int], size: int) -> None:
    rows = drawn_batch(lengths, size)
    width = batch_width_blocks(lengths, size)

    assert width * size == len(rows[0])
    for length, row in zip(lengths, rows, strict=True):
        padding = row_left_padding(length, width, size)
        assert padding == row.count(".")
        assert row_tkv(length, padding) == last_token(row)
        assert last_block_offset(length, size) == last_token(row) - (width - 1) * size


@given(batches, st.integers(1, 6))
def test_max_tkv_is_that_of_the_row_that_reaches_furthest(lengths: list[int], size: int) -> None:
    assert max_tkv(lengths, size) == max(drawn_tkvs(lengths, size))


def largest_tkv(lengths: Sequence[int], steps: int, size: int) -> int:
    """The largest tkv of the drawn batches of all steps."""
    batches = [[length + step for length in lengths] for step in range(1, steps + 1)]
    return max(tkv for batch in batches for tkv in drawn_tkvs(batch, size))


@given(batches, st.integers(1, 12), st.integers(1, 6))
def test_peak_is_the_largest_tkv_of_all_steps(lengths: list[int], steps: int, size: int) -> None:
    assert peak_tkv(lengths, steps, size) == largest_tkv(lengths, steps, size)


@given(st.integers(1, 30), st.integers(0, 12), st.integers(1, 6))
def test_block_end_is_reached_if_some_length_on_the_way_fills_a_block(
    first: int, more: int, size: int
) -> None:
    fills = any(length % size == 0 for length in range(first, first + more + 1))

    assert reaches_block_end(first, first + more, size) == fills
