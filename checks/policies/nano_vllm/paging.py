"""Steps of nano-vLLM as work of the paged device.

Source: nano-vllm, chapter 9 ("Scheduler to GPU Execution").
"""

from checks.harness.paging.rows import PagedWork, Row, request_tokens
from checks.harness.paging.watch import PagedWatch, watch_of
from spec.core.records import DECODE
from spec.nano_vllm.formulas import captured_sizes
from spec.nano_vllm.records import Context, Step


def nano_vllm_watch(ctx: Context) -> PagedWatch[Step]:
    """The device next to a nano-vLLM scheduler."""
    config = ctx.config
    return watch_of(
        ctx,
        nano_vllm_work,
        first_block=0,
        # The budget is that of a prefill step; a decode has a token for every sequence.
        max_num_batched_tokens=max(config.max_num_batched_tokens, config.max_num_seqs),
        captured_sizes=captured_sizes(config.max_num_seqs, config.graph_sizes),
    )


def nano_vllm_work(ctx: Context, step: Step) -> PagedWork:
    """A prefill or a decode: each row computes what it is behind, and samples one token."""
    rows = {}
    for row in step.batch:
        cached = row.computed - step.scheduled[row.id]
        tokens = request_tokens(ctx.requests[row.id], cached, row.computed)
        rows[row.id] = Row(tokens, cached, row.blocks, samples=1, due=1)
    return PagedWork(rows, is_captured=step.kind == DECODE)
