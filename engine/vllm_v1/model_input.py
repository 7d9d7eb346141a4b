"""The paged device's input for a planned step.

Source: vllm-v1, "The Fundamental Insight" and "Speculative Decoding".
"""

from collections.abc import Mapping, Sequence

import numpy as np

from engine.core.tensors import NO_TOKENS, Tensor
from engine.paged.decode import decode_input
from engine.paged.inputs import PagedInput, PagedShape
from engine.paged.rows import Row, paged_input
from engine.vllm_v1.plan import Plan, Turn
from engine.vllm_v1.requests import RequestState
from engine.vllm_v1.state import SchedulerState
from spec.vllm_v1.config import VllmV1Config


def paged_shape(config: VllmV1Config) -> PagedShape:
    """The sizes of a device for this configuration."""
    return PagedShape(
        block_size=config.block_size,
        first_block=1,
        num_blocks=config.pool_blocks,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.token_budget,
        num_speculative_tokens=config.num_speculative_tokens,
    )


def step_input(
    state: SchedulerState,
    plan: Plan,
    turns: Sequence[Turn],
    drafts: Mapping[RequestState, Tensor],
) -> PagedInput | None:
    """The tokens of every row, with its drafts behind them; None if there is no row.

    `turns`: those of the plan that are computed. `drafts`: of the rows that have any.
    """
    if plan.batch is not None and not turns:
        fresh = {turn.row: turn.fresh for turn in plan.grown}
        steps, size = state.running.steps, state.config.block_size
        return decode_input(state.slots, plan.batch, steps, fresh, size)
    rows = [] if plan.batch is None else _decoding_rows(state, plan)
    rows += [_row(state, turn, drafts.get(turn.row, NO_TOKENS)) for turn in turns]
    return paged_input(rows, state.config.block_size) if rows else None


def _decoding_rows(state: SchedulerState, plan: Plan) -> list[Row]:
    """The newest token of every row of the batch."""
    assert plan.batch is not None
    tables = {turn.row: turn.table for turn in plan.grown}
    batch, steps = plan.batch, state.running.steps
    newest = state.slots.outputs[batch.slots, batch.outputs + steps]
    return [
        Row(newest[place : place + 1], start, tables.get(row, row.blocks), samples=1, due=1)
        for place, (row, start) in enumerate(
            zip(batch.rows, (batch.starts + steps).tolist(), strict=True)
        )
    ]


def _row(state: SchedulerState, turn: Turn, drafts: Tensor) -> Row:
    end = turn.computed + turn.new - turn.drafts
    tokens = state.request_tokens(turn.row, turn.computed, end)
    if len(drafts):
        tokens = np.concatenate([tokens, drafts])
    return Row(tokens, turn.computed, turn.table, turn.samples, due=turn.samples)
