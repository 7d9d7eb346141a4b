"""Constraints on the tensors of a step that do not depend on the KV cache.

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
    """The layout of a checked prefill chunk; lengths in tokens.

    - `columns`: number of table columns before the chunk.
    - `blocks` [blocks of a chunk]: the chunk's blocks in the table; 0 is padding.
    - `positions` [blocks of a chunk]: real position of each block's first token.
    - `is_real` [chunk_size]: which places of the chunk hold a token of the prompt.
    - `tokens` [blocks of a chunk]: number of real tokens in each block.
    - `is_written` [blocks of a chunk]: whether the tokens are written to this block; else their
      writes are redirected to block 0.
    """

    columns: int
    blocks: Tensor
    positions: Tensor
    is_real: Flags
    tokens: Tensor
    is_written: Flags

    @classmethod
    def of(cls, config: SpyreConfig, inputs: PrefillInput) -> Self:
        """The layout as the tensors determine it."""
        size, columns = config.block_size, int(inputs.chunk[0]) * config.blocks_per_chunk
        padded = columns * size + np.arange(config.chunk_size)
        is_real = (padded >= inputs.left_padding) & (padded < inputs.length)
        return cls(
            columns=columns,
            blocks=inputs.block_table[0, columns:],
            positions=padded[::size] - inputs.left_padding,
            is_real=is_real,
            tokens=is_real.reshape(-1, size).sum(axis=1),
            is_written=inputs.slot_mapping[::size] // size != PADDING_BLOCK,
        )


def checked_chunk(config: SpyreConfig, inputs: PrefillInput) -> ChunkLayout:
    """Check the tensors of a chunk: its layout.

    Raises:
        ConstraintError: for the first broken constraint.
    """
    _check_prefill_form(config, inputs)
    _check_alignment(config, inputs)
    tokens = int(inputs.length[0] - inputs.left_padding[0])
    _check_volume(config, 1, tokens)
    _check_table(config, inputs.block_table, inputs.left_padding)
    layout = ChunkLayout.of(config, inputs)
    check_tokens("token", inputs.token_ids, layout.is_real)
    first, size = int(layout.positions[0]), config.chunk_size
    expected = np.where(layout.is_real, np.arange(first, first + size), 0)
    _check_positions(config, "token", inputs.positions, expected)
    _check_chunk_slots(config, inputs, layout)
    _check_written_once("index", inputs.block_table, layout.blocks[layout.is_written])
    return layout


def _check_prefill_form(config: SpyreConfig, inputs: PrefillInput) -> None:
    """The input has one row and a whole chunk; the table ends with the chunk."""
    shape = inputs.block_table.shape
    malformed = len(shape) != 2
    refuse_if(malformed, Constraint.SHAPE, tensor="block_table", shape=str(shape))
    refuse_if(shape[0] != 1, Constraint.BATCH_SIZE, rows=shape[0], allowed=1)
    tokens, size = inputs.token_ids.size, config.chunk_size
    refuse_if(tokens != size, Constraint.CHUNK, tokens=tokens, chunk_size=size)
    single = dict.fromkeys(("left_padding", "length", "chunk", "is_last"), (1,))
    check_form(inputs, single)
    chunk = int(inputs.chunk[0])
    refuse_if(chunk < 0, Constraint.CHUNK, chunk=chunk)
    per_token = dict.fromkeys(("token_ids", "positions", "slot_mapping"), (size,))
    table = (1, (chunk + 1) * config.blocks_per_chunk)
    check_form(inputs, per_token | {"block_table": table})


def _check_alignment(config: SpyreConfig, inputs: PrefillInput) -> None:
    """Left padding is whole blocks, less than a chunk; the chunk's last block has a real token."""
    padding, length = int(inputs.left_padding[0]), int(inputs.length[0])
    size, chunk_size = config.block_size, config.chunk_size
    misplaced = not 0 <= padding < chunk_size or padding % size != 0
    refuse_if(misplaced, Constraint.LEFT_PADDING, left_padding=padding, block_size=size)
    end, is_last = (int(inputs.chunk[0]) + 1) * chunk_size, int(inputs.is_last[0])
    unclear = is_last not in (0, 1)
    refuse_if(unclear, Constraint.CHUNK, is_last=is_last)
    incomplete = length > end or (not is_last and length < end)
    refuse_if(incomplete, Constraint.CHUNK, length=length, chunk_end=end, is_last=is_last)
    is_empty = length <= end - size
    refuse_if(is_empty, Constraint.EMPTY_LAST_BLOCK, length=length, last_block_from=end - size)


def _check_chunk_slots(config: SpyreConfig, inputs: PrefillInput, layout: ChunkLayout) -> None:
    """A block's tokens are all written to their places in it, or all to block 0."""
    size, slots = config.block_size, inputs.slot_mapping
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
    """The block table and the left padding of a decode batch that passed the checks."""

    block_table: Tensor
    left_padding: Tensor

    @classmethod
    def of(cls, inputs: DecodeInput) -> Self | None:
        """The checked table; None if the caller can still change it in place."""
        table = inputs.block_table
        may_change = table.flags.writeable or table.base is not None
        return None if may_change else cls(table, inputs.left_padding.copy())

    def is_unchanged(self, inputs: DecodeInput) -> bool:
        """True if the inputs have the same table object and equal left padding."""
        if inputs.block_table is not self.block_table:
            return False
        return not np.count_nonzero(inputs.left_padding != self.left_padding)


def check_decode(
    config: SpyreConfig, inputs: DecodeInput, last: CheckedTable | None = None
) -> CheckedTable | None:
    """Check the tensors of a decode batch: its checked table, if the next step may rely on it.

    `last`: the result for the batch before. Most batches have the same table and left padding
    again; checks that depend on these alone are then skipped.

    Raises:
        ConstraintError: for the first broken constraint.
    """
    _check_decode_form(config, inputs)
    unchanged = last if last is not None and last.is_unchanged(inputs) else None
    if unchanged is None:
        _check_row_padding(config, inputs)
    newest = inputs.tkv - 1
    _check_rectangle(config, inputs, newest)
    _check_volume(config, len(newest), int(newest.max()) + 1)
    if unchanged is None:
        _check_table(config, inputs.block_table, inputs.left_padding)
    check_tokens("row", inputs.token_ids, True)
    _check_positions(config, "row", inputs.positions, newest - inputs.left_padding)
    _check_row_slots(config, inputs, newest)
    if unchanged is None:
        _check_written_once("row", inputs.block_table, inputs.block_table[:, -1])
    return unchanged or CheckedTable.of(inputs)


def _check_decode_form(config: SpyreConfig, inputs: DecodeInput) -> None:
    """The table has a row and a column or more, all tensors agree on rows, rows are limited."""
    shape = inputs.block_table.shape
    malformed = len(shape) != 2 or 0 in shape
    refuse_if(malformed, Constraint.SHAPE, tensor="block_table", shape=str(shape))
    rows, most = shape[0], config.max_num_seqs
    refuse_if(rows > most, Constraint.BATCH_SIZE, rows=rows, max_num_seqs=most)
    per_row = ("token_ids", "positions", "slot_mapping", "left_padding", "tkv")
    check_form(inputs, dict.fromkeys(per_row, (rows,)) | {"block_table": shape})


def _check_row_padding(config: SpyreConfig, inputs: DecodeInput) -> None:
    """Left padding is whole blocks, fewer than the row has; some row has none."""
    padding, size = inputs.left_padding, config.block_size
    width = inputs.block_table.shape[1]
    wrong = (padding < 0) | (padding >= width * size) | (padding % size != 0)
    refuse_where(wrong, Constraint.LEFT_PADDING, left_padding=padding, block_size=size, width=width)
    least = int(padding.min())
    refuse_if(least > 0, Constraint.EXCESS_PADDING, least_left_padding=least)


def _check_rectangle(config: SpyreConfig, inputs: DecodeInput, newest: Tensor) -> None:
    """The newest tokens, at padded positions `newest`, are in the table's last column."""
    tkv, width = inputs.tkv, inputs.block_table.shape[1]
    needed = newest // config.block_size + 1
    most = int(needed.max())
    refuse_where(needed != most, Constraint.RECTANGLE, tkv=tkv, blocks=needed, most_blocks=most)
    refuse_if(most < width, Constraint.EMPTY_LAST_BLOCK, blocks=most, width=width)
    refuse_if(most > width, Constraint.RECTANGLE, blocks=most, width=width)


def _check_row_slots(config: SpyreConfig, inputs: DecodeInput, newest: Tensor) -> None:
    """Every row writes to its last block, to the slot of its newest token."""
    size, slots = config.block_size, inputs.slot_mapping
    blocks, own = slots // size, inputs.block_table[:, -1]
    refuse_where(blocks != own, Constraint.WRITE_OUTSIDE, slot=slots, block=blocks, expected=own)
    offsets, expected = slots % size, newest % size
    wrong = offsets != expected
    refuse_where(wrong, Constraint.WRITE_OFFSET, slot=slots, offset=offsets, expected=expected)


# --- both ---------------------------------------------------------------------------------------


def _check_table(config: SpyreConfig, table: Tensor, left_padding: Tensor) -> None:
    """A table [rows, blocks] has block 0 in the left padding, else blocks of the pool."""
    last = config.pool_blocks
    axes = ("row", "column")
    beyond = (table < 0) | (table > last)
    refuse_where(beyond, Constraint.BLOCK_ID, axes, block=table, last_block=last)
    padding = left_padding[:, np.newaxis] // config.block_size
    wrong = (table == PADDING_BLOCK) != (np.arange(table.shape[1]) < padding)
    refuse_where(wrong, Constraint.PADDING_BLOCKS, axes, block=table, padding_blocks=padding)


def _check_positions(config: SpyreConfig, axis: str, positions: Tensor, expected: Tensor) -> None:
    """Positions are as expected and less than the model length."""
    wrong = positions != expected
    refuse_where(wrong, Constraint.POSITION, (axis,), position=positions, expected=expected)
    length = config.max_model_len
    beyond = positions >= length
    refuse_where(beyond, Constraint.MODEL_LENGTH, (axis,), position=positions, max_model_len=length)


def _check_volume(config: SpyreConfig, rows: int, tkv: int) -> None:
    """Batch size times tkv is within the limit."""
    limit = config.max_batch_tkv_limit
    excess = bool(volume(rows, tkv) > limit)
    refuse_if(excess, Constraint.VOLUME, rows=rows, tkv=tkv, limit=limit)


def _check_written_once(axis: str, table: Tensor, written: Tensor) -> None:
    """Each written block occurs once in the whole table."""
    times = np.bincount(table.ravel())[written]
    refuse_where(times > 1, Constraint.WRITE_SHARED, (axis,), block=written, times=times)
