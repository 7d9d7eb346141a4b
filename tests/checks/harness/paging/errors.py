"""Errors in otherwise legal paged steps, as a builder of tensors may make them.

Each takes the rows of a step, its tensors or its transfers, and gives wrong ones, or None where it
does not apply. The tables tell how each is noticed: by refusing, or by other tokens.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random

import numpy as np
from attrs import evolve

from checks.harness.paging import Row
from engine.core.faults import Constraint
from engine.core.tensors import Tensor
from engine.paged.inputs import PagedInput, PagedShape, Transfers
from tests.engine.device.errors import READS, TOKENS, Planted, moved, planted

C = Constraint
# Another block can be as good as the right one: it holds equal tokens, or has no holder yet.
NOTHING = "not noticed"
WRITES = (C.WRITE_GAP, C.WRITE_HELD, C.REWRITE)

RowsError = Callable[[PagedShape, Sequence[Row], Random], list[Row] | None]
TensorsError = Callable[[PagedShape, PagedInput, Random], PagedInput | None]
TransfersError = Callable[[PagedShape, Transfers, Random], Transfers | None]


# --- tensors --------------------------------------------------------------------------------------


def shifted(name: str, by: int = 1) -> TensorsError:
    """One value of this tensor is wrong; of bounds, one between two rows."""

    def error(_shape: PagedShape, given: PagedInput, draw: Random) -> PagedInput | None:
        tensor = getattr(given, name)
        inner = range(len(tensor)) if name != "cu_seqlens_q" else range(1, len(tensor) - 1)
        return evolve(given, **{name: moved(tensor, draw.choice(inner), by)}) if inner else None

    return error


def slot_of_another_block(shape: PagedShape, given: PagedInput, draw: Random) -> PagedInput:
    place, size = draw.randrange(len(given.slot_mapping)), shape.block_size
    block = int(given.slot_mapping[place]) // size
    others = [number for number in range(shape.first_block, shape.end_block) if number != block]
    return evolve(
        given,
        slot_mapping=moved(given.slot_mapping, place, (draw.choice(others) - block) * size),
    )


def swapped(name: str) -> TensorsError:
    def error(_shape: PagedShape, given: PagedInput, draw: Random) -> PagedInput | None:
        tensor = getattr(given, name).copy()
        index, other = draw.choices(range(len(tensor)), k=2)
        if tensor[index] == tensor[other]:
            return None
        tensor[[index, other]] = tensor[[other, index]]
        return evolve(given, **{name: tensor})

    return error


def captured(_shape: PagedShape, given: PagedInput, _draw: Random) -> PagedInput | None:
    is_decode = len(given.token_ids) == len(given.cached_lens)
    return None if is_decode else evolve(given, is_captured=np.array([1]))


TENSOR_ERRORS: Mapping[str, Planted] = {
    "slot off by one": planted(shifted("slot_mapping"), C.WRITE_OFFSET, C.WRITE_OUTSIDE, C.SLOT),
    "slot of another block": planted(slot_of_another_block, C.WRITE_OUTSIDE),
    "slots of two tokens swapped": planted(
        swapped("slot_mapping"), C.WRITE_OUTSIDE, C.WRITE_OFFSET
    ),
    "position off by one": planted(shifted("positions"), C.NEXT_POSITION),
    "positions of two tokens swapped": planted(swapped("positions"), C.NEXT_POSITION),
    "context one too long": planted(shifted("context_lens"), C.LENGTHS),
    "context one too short": planted(shifted("context_lens", by=-1), C.LENGTHS),
    "cached length one too long": planted(shifted("cached_lens"), C.LENGTHS),
    "cached length one too short": planted(shifted("cached_lens", by=-1), C.LENGTHS),
    "contexts of two rows swapped": planted(swapped("context_lens"), C.LENGTHS),
    "a row that begins one token late": planted(shifted("cu_seqlens_q"), C.LENGTHS, C.EMPTY_QUERY),
    "a row that begins one token early": planted(
        shifted("cu_seqlens_q", by=-1), C.LENGTHS, C.EMPTY_QUERY
    ),
    "a step replayed that was not captured": planted(captured, C.CAPTURED_SIZE),
}


# --- rows -----------------------------------------------------------------------------------------


def in_a_row(change: Callable[[PagedShape, Row, Random], Row | None]) -> RowsError:
    """The change in one row that samples, so that other tokens show at once."""

    def error(shape: PagedShape, rows: Sequence[Row], draw: Random) -> list[Row] | None:
        place = draw.randrange(len(rows))
        wrong = change(shape, rows[place], draw) if rows[place].samples else None
        return None if wrong is None else [*rows[:place], wrong, *rows[place + 1 :]]

    return error


def in_two_rows(change: Callable[[PagedShape, Row, Row], tuple[Row, Row] | None]) -> RowsError:
    def error(shape: PagedShape, rows: Sequence[Row], draw: Random) -> list[Row] | None:
        if len(rows) < 2:
            return None
        index, other = draw.sample(range(len(rows)), 2)
        changed = change(shape, rows[index], rows[other])
        if changed is None:
            return None
        wrong = [*rows]
        wrong[index], wrong[other] = changed
        return wrong

    return error


def other_token(_shape: PagedShape, row: Row, draw: Random) -> Row:
    """Change a token that is no draft, because a rejected draft has no effect."""
    return evolve(
        row, tokens=moved(row.tokens, draw.randrange(len(row.tokens) - row.samples + 1), 1)
    )


def a_missing_token(_shape: PagedShape, row: Row, _draw: Random) -> Row:
    return evolve(row, cached=row.cached + 1)


def a_position_computed_again(_shape: PagedShape, row: Row, _draw: Random) -> Row | None:
    return evolve(row, cached=row.cached - 1) if row.cached else None


def with_block(row: Row, column: int, block: int) -> Row:
    return evolve(row, blocks=[*row.blocks[:column], block, *row.blocks[column + 1 :]])


def real_columns(shape: PagedShape, row: Row) -> range:
    """The columns of the context; later columns are allocated but empty."""
    return range(-(-row.context // shape.block_size))


def stale_block(shape: PagedShape, row: Row, draw: Random) -> Row | None:
    """Replace a block that is read by any other block."""
    if not row.cached:
        return None
    column = draw.randrange(-(-row.cached // shape.block_size))
    block = draw.randrange(shape.first_block, shape.end_block)
    return None if block == row.blocks[column] else with_block(row, column, block)


def swapped_blocks(shape: PagedShape, row: Row, draw: Random) -> Row | None:
    columns = real_columns(shape, row)
    if len(columns) < 2:
        return None
    column, other = draw.sample(columns, 2)
    return with_block(with_block(row, column, row.blocks[other]), other, row.blocks[column])


def one_block_for_two(shape: PagedShape, row: Row, draw: Random) -> Row | None:
    columns = real_columns(shape, row)
    if len(columns) < 2:
        return None
    column, other = draw.sample(columns, 2)
    return with_block(row, column, row.blocks[other])


def last_block_missing(shape: PagedShape, row: Row, _draw: Random) -> Row | None:
    left = len(real_columns(shape, row)) - 1
    return evolve(row, blocks=row.blocks[:left]) if left else None


def no_sample(_shape: PagedShape, row: Row, _draw: Random) -> Row:
    return evolve(row, samples=row.samples - 1)


def swapped_tables(_shape: PagedShape, row: Row, other: Row) -> tuple[Row, Row] | None:
    """Swap two block tables; forked sequences are skipped, their tables are alike at first."""
    if list(row.blocks[:-1]) == list(other.blocks[:-1]) != []:
        return None
    return evolve(row, blocks=other.blocks), evolve(other, blocks=row.blocks)


def same_last_block(shape: PagedShape, row: Row, other: Row) -> tuple[Row, Row]:
    theirs = other.blocks[real_columns(shape, other)[-1]]
    return with_block(row, real_columns(shape, row)[-1], theirs), other


ROW_ERRORS: Mapping[str, Planted] = {
    "other token": planted(in_a_row(other_token), TOKENS, C.REWRITE),
    "a token left out": planted(
        in_a_row(a_missing_token), C.TABLE_LENGTH, C.WRITE_GAP, C.REWRITE, *READS, TOKENS
    ),
    "a position computed again": planted(
        in_a_row(a_position_computed_again), C.WRITE_HELD, C.REWRITE, *READS, TOKENS
    ),
    "stale block": planted(in_a_row(stale_block), *READS, *WRITES, TOKENS, NOTHING),
    "swapped blocks": planted(in_a_row(swapped_blocks), *READS, *WRITES, TOKENS, NOTHING),
    "one block for two": planted(in_a_row(one_block_for_two), *READS, C.WRITE_HELD, C.REWRITE),
    "last block missing": planted(in_a_row(last_block_missing), C.TABLE_LENGTH),
    "no sample": planted(in_a_row(no_sample), TOKENS),
    "tables of two rows swapped": planted(
        in_two_rows(swapped_tables),
        *(C.TABLE_LENGTH, C.WRITE_GAP, C.REWRITE, *READS, TOKENS),
    ),
    "two rows with the same last block": planted(in_two_rows(same_last_block), C.WRITE_HELD),
}


# --- transfers ------------------------------------------------------------------------------------


def in_pairs(kind: str, change: Callable[[Tensor, Random], Tensor | None]) -> TransfersError:
    """The change in the pairs of one kind, where there are any."""

    def error(_shape: PagedShape, given: Transfers, draw: Random) -> Transfers | None:
        pairs: Tensor = getattr(given, kind)
        wrong = change(pairs, draw) if len(pairs) else None
        return None if wrong is None else evolve(given, **{kind: wrong})

    return error


def lost(pairs: Tensor, draw: Random) -> Tensor:
    return np.delete(pairs, draw.randrange(len(pairs)), axis=0)


def turned_round(pairs: Tensor, _draw: Random) -> Tensor:
    return pairs[:, ::-1]


def exchanged(pairs: Tensor, draw: Random) -> Tensor | None:
    """The targets of two different pairs."""
    index, other = draw.choices(range(len(pairs)), k=2)
    if (pairs[index] == pairs[other]).any():
        return None
    wrong = pairs.copy()
    wrong[[index, other], 1] = pairs[[other, index], 1]
    return wrong


# Nothing is wrong where a block has not changed since it was last swapped or is not read any more.
SWAPPED = (*READS, C.WRITE_GAP, C.REWRITE, TOKENS, NOTHING)
COPIED = (*READS, C.WRITE_GAP, C.REWRITE)

SWAP_ERRORS: Mapping[str, Planted] = {
    "a block not swapped out": planted(in_pairs("swaps_out", lost), *SWAPPED, C.SWAP_SOURCE),
    "a block not swapped in": planted(in_pairs("swaps_in", lost), *SWAPPED),
    "blocks swapped out the wrong way": planted(
        in_pairs("swaps_out", turned_round),
        *(*SWAPPED, C.SWAP_SOURCE, C.TRANSFER_BLOCK, C.TRANSFER_TARGET),
    ),
    "blocks exchanged on their way out": planted(in_pairs("swaps_out", exchanged), *SWAPPED),
    "blocks exchanged on their way in": planted(in_pairs("swaps_in", exchanged), *SWAPPED),
}
COPY_ERRORS: Mapping[str, Planted] = {
    "a shared block not copied": planted(in_pairs("copies", lost), *COPIED),
    "blocks copied the wrong way": planted(
        in_pairs("copies", turned_round), *COPIED, C.TRANSFER_TARGET
    ),
}
