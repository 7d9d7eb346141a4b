"""What a prefill step is refused for by its tensors alone, whatever the cache holds.

Source: spyre, "Padding, Prefill Alignment", "Prefill padding" and "Boundary chunk".
"""

from typing import Self

import numpy as np
from attrs import frozen

from engine.spyre.device.constraints import Constraint
from engine.spyre.device.forms import (
    check_form,
    check_positions,
    check_table,
    check_tokens,
    check_volume,
    check_written_once,
)
from engine.spyre.device.inputs import PrefillInput, Tensor
from engine.spyre.device.refusing import Flags, refuse_if, refuse_where
from spec.spyre.config import SpyreConfig
from spec.spyre.state import PADDING_BLOCK


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
        """The layout that the tensors tell."""
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
    _check_batch(config, given)
    _check_alignment(config, given)
    tokens = int(given.length[0] - given.left_padding[0])
    check_volume(config, 1, tokens)
    check_table(config, given.block_table, given.left_padding)
    layout = ChunkLayout.of(config, given)
    check_tokens("token", given.token_ids, layout.is_real)
    first, size = int(layout.positions[0]), config.chunk_size
    expected = np.where(layout.is_real, np.arange(first, first + size), 0)
    check_positions(config, "token", given.positions, expected)
    _check_slots(config, given, layout)
    check_written_once("index", given.block_table, layout.blocks[layout.is_written])
    return layout


def _check_batch(config: SpyreConfig, given: PrefillInput) -> None:
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


def _check_slots(config: SpyreConfig, given: PrefillInput, layout: ChunkLayout) -> None:
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
