"""The paged device's input for a planned step.

Source: nano-vllm, chapter 9 ("Scheduler to GPU Execution").
"""

import numpy as np

from engine.core.tensors import Tensor
from engine.nano_vllm.plan import Admission, DecodePlan, PrefillPlan
from engine.nano_vllm.state import SchedulerState
from engine.paged.inputs import NO_BLOCK, PagedInput, PagedShape
from engine.paged.rows import Row, paged_input
from spec.core.blocks import slot
from spec.nano_vllm.config import NanoVllmConfig
from spec.nano_vllm.formulas import captured_sizes


def paged_shape(config: NanoVllmConfig) -> PagedShape:
    """The sizes of a device for this configuration."""
    return PagedShape(
        block_size=config.block_size,
        first_block=0,
        num_blocks=config.pool_blocks,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        # The budget is that of a prefill step; a decode has a token for every sequence.
        max_num_batched_tokens=max(config.max_num_batched_tokens, config.max_num_seqs),
        captured_sizes=captured_sizes(config.max_num_seqs, config.graph_sizes),
    )


def prefill_input(state: SchedulerState, plan: PrefillPlan) -> PagedInput:
    """All tokens of the admitted that are not cached, row after row."""
    rows = [_prefill_row(state, one) for one in plan.admissions]
    return paged_input(rows, state.config.block_size)


def _prefill_row(state: SchedulerState, admission: Admission) -> Row:
    request, cached = admission.request, len(admission.hits) * state.config.block_size
    tokens = state.tokens_of(request, cached, request.prefill_len)
    return Row(tokens, cached, (*admission.hits, *admission.fresh), samples=1, due=1)


def decode_input(state: SchedulerState, plan: DecodePlan) -> PagedInput:
    """The newest token of every row."""
    batch, size = plan.batch, state.config.block_size
    rows = np.arange(len(batch.rows))
    computed = batch.starts + state.running.steps
    tables = _tables(state, plan)
    last_column = (tables != NO_BLOCK).sum(axis=1) - 1
    columns = np.minimum(computed // size, last_column)  # the device refuses a missing block
    return PagedInput(
        token_ids=state.slots.outputs[batch.slots, batch.outputs + state.running.steps],
        positions=computed,
        slot_mapping=slot(tables[rows, columns], computed, size),
        cu_seqlens_q=np.arange(len(rows) + 1),
        cached_lens=computed,
        context_lens=computed + 1,
        block_tables=tables,
        logits_indices=rows,
        is_captured=np.array([1]),
    )


def _tables(state: SchedulerState, plan: DecodePlan) -> Tensor:
    """The rows' blocks, those that this step hands out behind them; [rows, width]."""
    batch, slots = plan.batch, state.slots
    held = np.array([len(row.blocks) for row in batch.rows])
    new = [(batch.rows.index(row), block) for row, block in plan.moves if block is not None]
    width = held.max() + bool(new)
    tables = np.full((len(held), width), NO_BLOCK, np.int64)
    known = min(width, slots.tables.shape[1])
    tables[:, :known] = slots.tables[batch.slots, :known]
    tables[np.arange(width) >= held[:, np.newaxis]] = NO_BLOCK
    for row, block in new:
        tables[row, held[row]] = block
    return tables
