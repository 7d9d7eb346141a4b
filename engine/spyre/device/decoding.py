"""What a decode step is refused for by its tensors alone, whatever the cache holds.

Source: spyre, "Padding, Rectangular Decode" and "Decode padding".
"""

import numpy as np

from engine.spyre.device.constraints import Constraint
from engine.spyre.device.forms import (
    check_form,
    check_positions,
    check_table,
    check_tokens,
    check_volume,
    check_written_once,
)
from engine.spyre.device.inputs import DecodeInput, Tensor
from engine.spyre.device.refusing import refuse_if, refuse_where
from spec.spyre.config import SpyreConfig


def check_decode(config: SpyreConfig, given: DecodeInput) -> None:
    """Hold every constraint of a decode batch against its tensors.

    Raises:
        ConstraintError: the first constraint that is broken.
    """
    _check_batch(config, given)
    _check_padding(config, given)
    _check_rectangle(config, given)
    check_volume(config, len(given.tkv), int(given.tkv.max()))
    check_table(config, given.block_table, given.left_padding)
    check_tokens("row", given.token_ids, True)
    check_positions(config, "row", given.positions, given.tkv - 1 - given.left_padding)
    _check_slots(config, given)
    check_written_once("row", given.block_table, given.block_table[:, -1])


def _check_batch(config: SpyreConfig, given: DecodeInput) -> None:
    """A table of at least one row and one block, all else of as many rows; not too many."""
    shape = given.block_table.shape
    malformed = len(shape) != 2 or 0 in shape
    refuse_if(malformed, Constraint.SHAPE, tensor="block_table", shape=str(shape))
    rows, most = shape[0], config.max_num_seqs
    refuse_if(rows > most, Constraint.BATCH_SIZE, rows=rows, max_num_seqs=most)
    per_row = ("token_ids", "positions", "slot_mapping", "left_padding", "tkv")
    check_form(given, dict.fromkeys(per_row, (rows,)) | {"block_table": shape})


def _check_padding(config: SpyreConfig, given: DecodeInput) -> None:
    """Whole blocks, fewer than the row has; no column that is padding in every row."""
    padding, size = given.left_padding, config.block_size
    width = given.block_table.shape[1]
    wrong = (padding < 0) | (padding >= width * size) | (padding % size != 0)
    refuse_where(wrong, Constraint.LEFT_PADDING, left_padding=padding, block_size=size, width=width)
    least = int(padding.min())
    refuse_if(least > 0, Constraint.EXCESS_PADDING, least_left_padding=least)


def _check_rectangle(config: SpyreConfig, given: DecodeInput) -> None:
    """The newest token of every row lies in the last block of the table."""
    tkv, width = given.tkv, given.block_table.shape[1]
    needed = (tkv - 1) // config.block_size + 1
    most = int(needed.max())
    refuse_where(needed != most, Constraint.RECTANGLE, tkv=tkv, blocks=needed, most_blocks=most)
    refuse_if(most < width, Constraint.EMPTY_LAST_BLOCK, blocks=most, width=width)
    refuse_if(most > width, Constraint.RECTANGLE, blocks=most, width=width)


def _check_slots(config: SpyreConfig, given: DecodeInput) -> None:
    """Every row writes to its last block, to the slot of its newest token."""
    size, slots = config.block_size, given.slot_mapping
    blocks = given.block_table[:, -1]
    wrong = slots // size != blocks
    refuse_where(wrong, Constraint.WRITE_OUTSIDE, slot=slots, block=slots // size, expected=blocks)
    expected = offsets(config, given.tkv)
    wrong = slots % size != expected
    refuse_where(wrong, Constraint.WRITE_OFFSET, slot=slots, offset=slots % size, expected=expected)


def offsets(config: SpyreConfig, tkv: Tensor) -> Tensor:
    """Where in its block each row's newest token stands, from 0."""
    return np.asarray((tkv - 1) % config.block_size)
