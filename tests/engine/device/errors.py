"""Errors in otherwise legal tensors, as code that builds them may make them.

Each takes a step and randomness and gives the wrong step, or None where it does not apply. The
tables tell how the device notices each of them: by refusing, or by other tokens.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import evolve, frozen

from engine.core.faults import Constraint
from engine.core.tensors import Tensor
from engine.spyre.device import DecodeInput, PrefillInput
from spec.spyre.config import SpyreConfig

C = Constraint
TOKENS = "other tokens"
READS = (C.READ_UNWRITTEN, C.READ_POSITION, C.READ_CONTENT)

Step = PrefillInput | DecodeInput
Sign = Constraint | str  # how the device notices: it refuses, or `TOKENS`
Error = Callable[[SpyreConfig, Any, random.Random], Any]


def moved(tensor: Tensor, place: Any, by: int) -> Tensor:
    changed = tensor.copy()
    changed[place] += by
    return changed


@frozen
class Planted:
    """An error, and every way in which it is noticed."""

    error: Callable[..., Any]
    noticed: frozenset[Sign]


def planted(error: Callable[..., Any], *noticed: Sign) -> Planted:
    return Planted(error, frozenset(noticed))


# --- tensors --------------------------------------------------------------------------------------

Places = Callable[[SpyreConfig, Any], Sequence[int]]


def a_row(_config: SpyreConfig, given: Step) -> Sequence[int]:
    """The rows of a decode batch, the one prompt of a prefill."""
    return range(len(given.left_padding))


def a_token(config: SpyreConfig, given: PrefillInput) -> Sequence[int]:
    """Places of the chunk that hold tokens."""
    start = int(given.chunk[0]) * config.chunk_size
    return range(max(int(given.left_padding[0]) - start, 0), int(given.length[0]) - start)


def a_written_slot(config: SpyreConfig, given: PrefillInput) -> Sequence[int]:
    """Places whose slot is not in block 0, where it would not matter."""
    return [int(place) for place in np.flatnonzero(given.slot_mapping >= config.block_size)]


def shifted(*names: str, by: int = 1, blocks: int = 0, at: Places = a_row) -> Error:
    """The same error in one place of these tensors: so many more, or blocks more."""

    def error(config: SpyreConfig, given: Any, draw: random.Random) -> Any:
        place, more = draw.choice(at(config, given)), blocks * config.block_size or by
        return evolve(given, **{name: moved(getattr(given, name), place, more) for name in names})

    return error


def swapped(*names: str, at: Places = a_row) -> Error:
    """Two places have each other's values in these tensors."""

    def error(config: SpyreConfig, given: Any, draw: random.Random) -> Any:
        places = at(config, given)
        if len(places) < 2:
            return None
        pair = draw.sample(places, 2)
        tensors = {name: getattr(given, name).copy() for name in names}
        for tensor in tensors.values():
            tensor[pair] = tensor[pair[::-1]]
        return evolve(given, **tensors)

    return error


# --- block tables ---------------------------------------------------------------------------------


def real_columns(config: SpyreConfig, given: Step, row: int) -> range:
    return range(int(given.left_padding[row]) // config.block_size, given.block_table.shape[1])


def table_error(change: Callable[[SpyreConfig, Tensor, range, random.Random], bool]) -> Error:
    """`change` works on one row of the block table, given its real columns; False: no such."""

    def error(config: SpyreConfig, given: Step, draw: random.Random) -> Step | None:
        table = given.block_table.copy()
        row = draw.randrange(len(table))
        if not change(config, table[row], real_columns(config, given, row), draw):
            return None
        return evolve(given, block_table=table)

    return error


def swapped_blocks(_config: SpyreConfig, row: Tensor, real: range, draw: random.Random) -> bool:
    if len(real) < 2:
        return False
    first, second = draw.sample(real, 2)
    row[[first, second]] = row[[second, first]]
    return True


def stale_block(config: SpyreConfig, row: Tensor, real: range, draw: random.Random) -> bool:
    row[draw.choice(real)] = draw.randrange(1, config.pool_blocks + 1)
    return True


def block_zero(_config: SpyreConfig, row: Tensor, real: range, draw: random.Random) -> bool:
    row[draw.choice(real)] = 0
    return True


def one_block_for_two(_config: SpyreConfig, row: Tensor, real: range, draw: random.Random) -> bool:
    if len(real) < 2:
        return False
    first, second = draw.sample(real, 2)
    row[first] = row[second]
    return True


def block_in_the_padding(
    config: SpyreConfig, row: Tensor, real: range, draw: random.Random
) -> bool:
    if real.start == 0:
        return False
    row[draw.randrange(real.start)] = draw.randrange(1, config.pool_blocks + 1)
    return True


TABLE_ERRORS = {
    "swapped blocks": planted(table_error(swapped_blocks), C.READ_POSITION, C.WRITE_OUTSIDE),
    "stale block": planted(table_error(stale_block), *READS, C.WRITE_OUTSIDE, C.WRITE_SHARED),
    "block 0 in a row": planted(table_error(block_zero), C.PADDING_BLOCKS),
    "one block for two": planted(
        table_error(one_block_for_two), C.READ_POSITION, C.WRITE_OUTSIDE, C.WRITE_SHARED
    ),
    "a block in the padding": planted(table_error(block_in_the_padding), C.PADDING_BLOCKS),
}


def block_of_another_row(config: SpyreConfig, given: DecodeInput, draw: random.Random) -> Any:
    if len(given.tkv) < 2:
        return None
    row, other = draw.sample(range(len(given.tkv)), 2)
    real = real_columns(config, given, row)
    table = given.block_table.copy()
    column = draw.choice(real)
    table[row, column] = table[other, column]
    return evolve(given, block_table=table)


def column_of_padding(config: SpyreConfig, given: DecodeInput, _draw: random.Random) -> DecodeInput:
    size = config.block_size
    return evolve(
        given,
        block_table=np.pad(given.block_table, ((0, 0), (1, 0))),
        left_padding=given.left_padding + size,
        tkv=given.tkv + size,
    )


def padded_on_the_right(config: SpyreConfig, given: DecodeInput, draw: random.Random) -> Any:
    """Short rows as other hardware has them: real blocks first, empty ones behind."""
    short = np.flatnonzero(given.left_padding)
    if not len(short):
        return None
    row = draw.choice(short.tolist())
    padding = int(given.left_padding[row])
    table = given.block_table.copy()
    table[row] = np.roll(table[row], -(padding // config.block_size))
    return evolve(
        given,
        block_table=table,
        left_padding=moved(given.left_padding, row, -padding),
        tkv=moved(given.tkv, row, -padding),
    )


def empty_block_on_the_right(config: SpyreConfig, given: DecodeInput, draw: random.Random) -> Any:
    new = [[draw.randrange(1, config.pool_blocks + 1)] for _ in given.tkv]
    return evolve(given, block_table=np.hstack([given.block_table, np.array(new)]))


def slot_of_another_block(config: SpyreConfig, given: DecodeInput, draw: random.Random) -> Any:
    return shifted("slot_mapping", blocks=draw.randrange(1, config.pool_blocks))(
        config, given, draw
    )


DECODE_ERRORS: Mapping[str, Planted] = {
    "slot off by one": planted(shifted("slot_mapping"), C.WRITE_OFFSET, C.WRITE_OUTSIDE),
    "slot of another block": planted(slot_of_another_block, C.WRITE_OUTSIDE),
    "slots of two rows swapped": planted(swapped("slot_mapping"), C.WRITE_OUTSIDE),
    "position off by one": planted(shifted("positions"), C.POSITION),
    "mask one too long": planted(shifted("tkv"), C.POSITION, C.RECTANGLE),
    "mask one too short": planted(
        shifted("tkv", by=-1), C.POSITION, C.RECTANGLE, C.EMPTY_LAST_BLOCK
    ),
    "a token left out": planted(
        shifted("tkv", "positions", "slot_mapping"), C.READ_UNWRITTEN, C.READ_POSITION, C.RECTANGLE
    ),
    "a position computed again": planted(
        shifted("tkv", "positions", "slot_mapping", by=-1),
        C.OVERWRITE,
        C.RECTANGLE,
        C.EMPTY_LAST_BLOCK,
        TOKENS,
    ),
    "padding mask off by one": planted(shifted("left_padding"), C.LEFT_PADDING),
    "padding mask off by one, positions with it": planted(
        shifted("left_padding", "positions"), C.LEFT_PADDING
    ),
    "padding one block too long": planted(
        shifted("left_padding", blocks=1), C.EXCESS_PADDING, C.PADDING_BLOCKS, C.LEFT_PADDING
    ),
    "padding and tkv one block too long": planted(
        shifted("left_padding", "tkv", blocks=1), C.EXCESS_PADDING, C.RECTANGLE, C.LEFT_PADDING
    ),
    "padding one block too short": planted(
        shifted("left_padding", blocks=-1), C.LEFT_PADDING, C.PADDING_BLOCKS
    ),
    "padding of two rows swapped": planted(swapped("left_padding"), C.PADDING_BLOCKS),
    "tables of two rows swapped": planted(
        swapped("block_table"), C.PADDING_BLOCKS, C.WRITE_OUTSIDE
    ),
    "other token": planted(shifted("token_ids"), TOKENS),
    "tokens of two rows swapped": planted(swapped("token_ids"), TOKENS),
    **TABLE_ERRORS,
    "a block of another row": planted(
        block_of_another_row, *READS, C.PADDING_BLOCKS, C.WRITE_OUTSIDE, C.WRITE_SHARED
    ),
    "a column of padding": planted(column_of_padding, C.EXCESS_PADDING),
    "padded on the right": planted(padded_on_the_right, C.RECTANGLE),
    "an empty block on the right": planted(empty_block_on_the_right, C.EMPTY_LAST_BLOCK),
}

# --- prefill --------------------------------------------------------------------------------------


def redirected(config: SpyreConfig, given: PrefillInput, _draw: random.Random) -> PrefillInput:
    """A block that is not cached is not written either."""
    slots = given.slot_mapping.copy()
    slots[a_token(config, given)[0] :] = 0
    return evolve(given, slot_mapping=slots)


def positions_off_by_one(config: SpyreConfig, given: PrefillInput, _draw: random.Random) -> Any:
    return evolve(given, positions=moved(given.positions, [*a_token(config, given)], 1))


def flipped_last(_config: SpyreConfig, given: PrefillInput, _draw: random.Random) -> PrefillInput:
    return evolve(given, is_last=1 - given.is_last)


PREFILL_ERRORS: Mapping[str, Planted] = {
    "other token": planted(shifted("token_ids", at=a_token), TOKENS, C.READ_CONTENT),
    "swapped tokens": planted(swapped("token_ids", at=a_token), TOKENS, C.READ_CONTENT),
    "slot off by one": planted(
        shifted("slot_mapping", at=a_written_slot), C.WRITE_OFFSET, C.WRITE_OUTSIDE
    ),
    "swapped slots": planted(
        swapped("slot_mapping", at=a_written_slot), C.WRITE_OFFSET, C.WRITE_OUTSIDE
    ),
    "everything redirected": planted(redirected, C.READ_UNWRITTEN),
    "positions off by one": planted(positions_off_by_one, C.POSITION),
    "mask one too long": planted(shifted("length", by=1), C.CHUNK, C.POSITION),
    "mask one too short": planted(
        shifted("length", by=-1), C.CHUNK, C.POSITION, C.EMPTY_LAST_BLOCK, C.TOKEN_ID
    ),
    "mask one block too short": planted(shifted("length", blocks=-1), C.CHUNK, C.EMPTY_LAST_BLOCK),
    "padding mask off by one": planted(shifted("left_padding", by=1), C.LEFT_PADDING),
    "padding one block too long": planted(
        shifted("left_padding", blocks=1), C.LEFT_PADDING, C.PADDING_BLOCKS
    ),
    "padding one block too short": planted(
        shifted("left_padding", blocks=-1), C.LEFT_PADDING, C.PADDING_BLOCKS
    ),
    "chunk of before": planted(shifted("chunk", by=-1), C.CHUNK, C.SHAPE),
    "last or not": planted(flipped_last, TOKENS, C.CHUNK),
    **TABLE_ERRORS,
}
