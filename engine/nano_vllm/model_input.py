"""The paged device's input for a planned step.

Source: nano-vllm, chapter 9 ("Scheduler to GPU Execution").
"""

from engine.nano_vllm.plan import Admission, DecodePlan, PrefillPlan
from engine.nano_vllm.state import SchedulerState
from engine.paged import decode
from engine.paged.inputs import PagedInput, PagedShape
from engine.paged.rows import Row, paged_input
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
    """The input tensors for all uncached tokens of the admitted requests."""
    rows = [_prefill_row(state, admission) for admission in plan.admissions]
    return paged_input(rows, state.config.block_size)


def _prefill_row(state: SchedulerState, admission: Admission) -> Row:
    request, cached = admission.request, len(admission.hits) * state.config.block_size
    tokens = state.request_tokens(request, cached, request.prefill_len)
    return Row(tokens, cached, (*admission.hits, *admission.fresh), samples=1, due=1)


def decode_input(state: SchedulerState, plan: DecodePlan) -> PagedInput:
    """The input tensors for the newest token of every row."""
    fresh = {row: (block,) for row, block in plan.moves if block is not None}
    steps, size = state.running.steps, state.config.block_size
    return decode.decode_input(state.slots, plan.batch, steps, fresh, size, is_captured=True)
