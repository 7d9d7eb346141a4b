"""The device's input for a planned step: the tensors of `engine.spyre.device.inputs`.

Source: spyre, "Prefill padding", "Decode padding" and "Boundary chunk".
"""

import numpy as np

from engine.core.tensors import Tensor
from engine.spyre.device import DecodeInput, PrefillInput
from engine.spyre.scheduler import DecodePlan, PrefillPlan, Scheduler
from engine.spyre.scheduler.prefill import with_block_table
from engine.spyre.scheduler.state import SchedulerState
from spec.spyre.padding import row_tkv


def prefill_input(scheduler: Scheduler, plan: PrefillPlan) -> PrefillInput:
    """The input tensors of one chunk."""
    state, config = scheduler.state, scheduler.state.config
    chunk = with_block_table(config, plan.chunk, plan.table, plan.hit_blocks)
    first = max(chunk.left_padding - chunk.chunk * config.chunk_size, 0)
    real = slice(first, first + chunk.end - chunk.start)
    tokens = state.request_tokens(plan.request, chunk.start, chunk.end)
    return PrefillInput(
        token_ids=_placed(tokens, real, config.chunk_size),
        positions=_placed(np.arange(chunk.start, chunk.end), real, config.chunk_size),
        slot_mapping=_written_slots(chunk.writes, real, config.block_size),
        block_table=np.array([chunk.block_table], np.int64),
        left_padding=np.array([chunk.left_padding]),
        length=np.array([chunk.left_padding + chunk.end]),
        chunk=np.array([chunk.chunk]),
        is_last=np.array([int(chunk.is_last)]),
    )


def _placed(values: Tensor, real: slice, length: int) -> Tensor:
    """A tensor of `length` zeros with `values` at the slice `real`."""
    placed = np.zeros(length, np.int64)
    placed[real] = values
    return placed


def _written_slots(writes: tuple[int, ...], real: slice, block_size: int) -> Tensor:
    """The slot of each token of a chunk; padding is written to block 0."""
    offsets = np.arange(len(writes) * block_size) % block_size
    slots: Tensor = offsets.copy()
    slots[real] += np.repeat(np.array(writes, np.int64) * block_size, block_size)[real]
    return slots


def decode_input(scheduler: Scheduler, plan: DecodePlan) -> DecodeInput:
    """The input tensors for the newest token of every row, with a rectangular block table."""
    state, rows, size = scheduler.state, plan.rows, scheduler.state.config.block_size
    padding = rows.left_padding.copy() if plan.left_padding is None else plan.left_padding
    table = rows.table
    if table is None or plan.growing or plan.left_padding is not None:
        table = rows.table = _rectangular_table(state, plan, padding // size)
    return DecodeInput(
        token_ids=state.slots.outputs[rows.slot, rows.computed - rows.prompt_len],
        positions=rows.computed.copy(),
        slot_mapping=table[:, -1] * size + rows.computed % size,
        block_table=table,
        left_padding=padding,
        tkv=row_tkv(rows.computed + 1, padding),
    )


def _rectangular_table(state: SchedulerState, plan: DecodePlan, padding_blocks: Tensor) -> Tensor:
    """Block tables [rows, width]: left padding, then the row's blocks, a new block last."""
    width = -(-plan.tkv // state.config.block_size)
    columns = np.arange(width) - padding_blocks[:, np.newaxis]
    last = state.slots.tables.shape[1] - 1  # the column of a new block may be beyond
    places = np.minimum(np.maximum(columns, 0), last)
    table: Tensor = state.slots.tables[plan.rows.slot[:, np.newaxis], places]
    table[columns < 0] = 0
    table[plan.growing, -1] = plan.new_blocks
    table.setflags(write=False)  # the next step may reuse it
    return table
