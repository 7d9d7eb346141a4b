"""What a step is refused for by its tensors alone, whatever the cache holds.

Source: spyre, "Padding", "Prefill padding", "Decode padding" and "Boundary chunk".
"""

from typing import Self

import numpy as np
from attrs import frozen

from engine.core.faults import Constraint, check_form, check_tokens, refuse_if, refuse_where
from engine.core.tensors import Flags, Tensor
from engine.spyre.device.inputs import DecodeInput, PrefillInput
from spec.spyre.config import SpyreConfig
from spec.spyre.padding import volume
from spec.spyre.state import PADDING_BLOCK

# --- prefill ------------------------------------------------------------------------------------


@frozen(eq=False)
class ChunkLayout:
    """Where the chunk of a prefill lies, once its tensors have been checked; lengths in tokens.

    - `columns`: blocks of the table that lie before the chunk.
    - `blocks` [blocks of a chunk]: its blocks as the table names them, 0 is padding.
    - `positions` [blocks of a chunk]: real position of each block's first token.
    - `is_real` [chunk_size]: which of its places hold a token of the prompt.
    - `tokens` [blocks of a chunk]: real tokens in each block.
    - `is_written` [blocks of a chunk]: whether the block's tokens are written to it, or elsewhere.
    """

    columns: int
    blocks: Tensor
    positions: Tensor
    is_real: Flags
    tokens: Tensor
    is_written: Flags

    @classmethod
    def of(cls, config: SpyreConfig, given: PrefillInput) -> Self:
        """The layout that follows from the tensors."""
        size, columns = config.block_size, int(given.chunk[0]) * config.blocks_per_chunk
        padded = columns * size + np.arange(config.chunk_size)
        is_real = (padded >= given.left_padding) & (padded < given.length)
        return cls(
            columns=columns,
            blocks=given.block_table[0, columns:],
            positions=padded[::size] - given.left_padding,
            is_real=is_real,
            tokens=is_real.reshape(-1, size).sum(axis=1),
            is_written=given.slot_mapping[::size] // size != PADDING_BLOCK,
        )


def checked_chunk(config: SpyreConfig, given: PrefillInput) -> ChunkLayout:
    """The layout of a chunk that breaks no constraint.

    Raises:
        ConstraintError: the first constraint that is broken.
    """
    _check_prefill_form(config, given)
    _check_alignment(config, given)
    tokens = int(given.length[0] - given.left_padding[0])
    _check_volume(config, 1, tokens)
    _check_table(config, given.block_table, given.left_padding)
    layout = ChunkLayout.of(config, given)
    check_tokens("token", given.token_ids, layout.is_real)
    first, size = int(layout.positions[0]), config.chunk_size
    expected = np.where(layout.is_real, np.arange(first, first + size), 0)
    _check_positions(config, "token", given.positions, expected)
    _check_chunk_slots(config, given, layout)
    _check_written_once("index", given.block_table, layout.blocks[layout.is_written])
    return layout


def _check_prefill_form(config: SpyreConfig, given: PrefillInput) -> None:
    """One row; a whole chunk; a table up to the chunk's end."""
    shape = given.block_table.shape
    malformed = len(shape) != 2
    refuse_if(malformed, Constraint.SHAPE, tensor="block_table", shape=str(shape))
    refuse_if(shape[0] != 1, Constraint.BATCH_SIZE, rows=shape[0], allowed=1)
    found, size = given.token_ids.size, config.chunk_size
    refuse_if(found != size, Constraint.CHUNK, tokens=found, chunk_size=size)
    single = dict.fromkeys(("left_padding", "length", "chunk", "is_last"), (1,))
    check_form(given, single)
    chunk = int(given.chunk[0])
    refuse_if(chunk < 0, Constraint.CHUNK, chunk=chunk)
    per_token = dict.fromkeys(("token_ids", "positions", "slot_mapping"), (size,))
    table = (1, (chunk + 1) * config.blocks_per_chunk)
    check_form(given, per_token | {"block_table": table})


def _check_alignment(config: SpyreConfig, given: PrefillInput) -> None:
    """Padding is whole blocks of less than a chunk; the last block of the chunk is not empty."""
    padding, length = int(given.left_padding[0]), int(given.length[0])
    size, chunk_size = config.block_size, config.chunk_size
    misplaced = not 0 <= padding < chunk_size or padding % size != 0
    refuse_if(misplaced, Constraint.LEFT_PADDING, left_padding=padding, block_size=size)
    end, is_last = (int(given.chunk[0]) + 1) * chunk_size, int(given.is_last[0])
    unclear = is_last not in (0, 1)
    refuse_if(unclear, Constraint.CHUNK, is_last=is_last)
    incomplete = length > end or (not is_last and length < end)
    refuse_if(incomplete, Constraint.CHUNK, length=length, chunk_end=end, is_last=is_last)
    is_empty = length <= end - size
    refuse_if(is_empty, Constraint.EMPTY_LAST_BLOCK, length=length, last_block_from=end - size)


def _check_chunk_slots(config: SpyreConfig, given: PrefillInput, layout: ChunkLayout) -> None:
    """A block's tokens are all written to their places in it, or all to block 0."""
    size, slots = config.block_size, given.slot_mapping
    blocks = slots // size
    is_written = blocks != PADDING_BLOCK
    own = layout.blocks.repeat(size)
    wrong = is_written & ((blocks != own) | ~layout.is_real)
    axes = ("token",)
    refuse_where(wrong, Constraint.WRITE_OUTSIDE, axes, slot=slots, block=blocks, expected=own)
    offset = np.arange(config.chunk_size) % size
    wrong = is_written & (slots % size != offset)
    refuse_where(wrong, Constraint.WRITE_OFFSET, axes, slot=slots, expected=own * size + offset)
    wrong = layout.is_real & (is_written != layout.is_written.repeat(size))
    refuse_where(wrong, Constraint.WRITE_GAP, axes, slot=slots, expected=own * size + offset)


# --- decode -------------------------------------------------------------------------------------


@frozen(eq=False)
class CheckedTable:
    """A decode batch's table that broke no constraint, with the padding of its rows."""

    block_table: Tensor
    left_padding: Tensor

    @classmethod
    def of(cls, given: DecodeInput) -> Self | None:
        """What need not be checked again in the next step; None if it may have changed by then."""
        table = given.block_table
        may_change = table.flags.writeable or table.base is not None
        return None if may_change else cls(table, given.left_padding.copy())

    def stands_in(self, given: DecodeInput) -> bool:
        """True if the table and the padding are the same again."""
        if given.block_table is not self.block_table:
            return False
        return not np.count_nonzero(given.left_padding != self.left_padding)


def check_decode(
    config: SpyreConfig, given: DecodeInput, last: CheckedTable | None = None
) -> CheckedTable | None:
    """Hold every constraint of a decode batch against its tensors.

    `last`: what this gave for the batch before. Most batches have the same table and padding
    again: what follows from these alone is not checked a second time.

    Raises:
        ConstraintError: the first constraint that is broken.
    """
    _check_decode_form(config, given)
    known = last if last is not None and last.stands_in(given) else None
    if known is None:
        _check_row_padding(config, given)
    newest = given.tkv - 1
    _check_rectangle(config, given, newest)
    _check_volume(config, len(newest), int(newest.max()) + 1)
    if known is None:
        _check_table(config, given.block_table, given.left_padding)
    check_tokens("row", given.token_ids, True)
    _check_positions(config, "row", given.positions, newest - given.left_padding)
    _check_row_slots(config, given, newest)
    if known is None:
        _check_written_once("row", given.block_table, given.block_table[:, -1])
    return known or CheckedTable.of(given)


def _check_decode_form(config: SpyreConfig, given: DecodeInput) -> None:
    """A table of at least one row and one block, all else of as many rows; not too many."""
    shape = given.block_table.shape
    malformed = len(shape) != 2 or 0 in shape
    refuse_if(malformed, Constraint.SHAPE, tensor="block_table", shape=str(shape))
    rows, most = shape[0], config.max_num_seqs
    refuse_if(rows > most, Constraint.BATCH_SIZE, rows=rows, max_num_seqs=most)
    per_row = ("token_ids", "positions", "slot_mapping", "left_padding", "tkv")
    check_form(given, dict.fromkeys(per_row, (rows,)) | {"block_table": shape})


def _check_row_padding(config: SpyreConfig, given: DecodeInput) -> None:
    """Whole blocks, fewer than the row has; no column that is padding in every row."""
    padding, size = given.left_padding, config.block_size
    width = given.block_table.shape[1]
    wrong = (padding < 0) | (padding >= width * size) | (padding % size != 0)
    refuse_where(wrong, Constraint.LEFT_PADDING, left_padding=padding, block_size=size, width=width)
    least = int(padding.min())
    refuse_if(least > 0, Constraint.EXCESS_PADDING, least_left_padding=least)


def _check_rectangle(config: SpyreConfig, given: DecodeInput, newest: Tensor) -> None:
    """The newest token of every row, at these padded positions, lies in the table's last block."""
    tkv, width = given.tkv, given.block_table.shape[1]
    needed = newest // config.block_size + 1
    most = int(needed.max())
    refuse_where(needed != most, Constraint.RECTANGLE, tkv=tkv, blocks=needed, most_blocks=most)
    refuse_if(most < width, Constraint.EMPTY_LAST_BLOCK, blocks=most, width=width)
    refuse_if(most > width, Constraint.RECTANGLE, blocks=most, width=width)


def _check_row_slots(config: SpyreConfig, given: DecodeInput, newest: Tensor) -> None:
    """Every row writes to its last block, to the slot of its newest token."""
    size, slots = config.block_size, given.slot_mapping
    blocks, own = slots // size, given.block_table[:, -1]
    refuse_where(blocks != own, Constraint.WRITE_OUTSIDE, slot=slots, block=blocks, expected=own)
    offsets, expected = slots % size, newest % size
    wrong = offsets != expected
    refuse_where(wrong, Constraint.WRITE_OFFSET, slot=slots, offset=offsets, expected=expected)


# --- both ---------------------------------------------------------------------------------------


def _check_table(config: SpyreConfig, table: Tensor, left_padding: Tensor) -> None:
    """A table [rows, blocks] names blocks of the pool; block 0 in the padding and only there."""
    last = config.pool_blocks
    axes = ("row", "column")
    beyond = (table < 0) | (table > last)
    refuse_where(beyond, Constraint.BLOCK_ID, axes, block=table, last_block=last)
    padding = left_padding[:, np.newaxis] // config.block_size
    wrong = (table == PADDING_BLOCK) != (np.arange(table.shape[1]) < padding)
    refuse_where(wrong, Constraint.PADDING_BLOCKS, axes, block=table, padding_blocks=padding)


def _check_positions(config: SpyreConfig, axis: str, positions: Tensor, expected: Tensor) -> None:
    """Positions follow from tkv and left padding, and lie inside the model's context length."""
    wrong = positions != expected
    refuse_where(wrong, Constraint.POSITION, (axis,), position=positions, expected=expected)
    length = config.max_model_len
    beyond = positions >= length
    refuse_where(beyond, Constraint.MODEL_LENGTH, (axis,), position=positions, max_model_len=length)


def _check_volume(config: SpyreConfig, rows: int, tkv: int) -> None:
    """Batch size times tkv keeps the limit."""
    limit = config.max_batch_tkv_limit
    excess = bool(volume(rows, tkv) > limit)
    refuse_if(excess, Constraint.VOLUME, rows=rows, tkv=tkv, limit=limit)


def _check_written_once(axis: str, table: Tensor, written: Tensor) -> None:
    """Each block that is written stands once in the whole table."""
    times = np.bincount(table.ravel())[written]
    refuse_where(times > 1, Constraint.WRITE_SHARED, (axis,), block=written, times=times)
