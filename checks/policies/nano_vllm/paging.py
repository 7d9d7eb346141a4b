"""Steps of nano-vLLM as work of the paged device.

Source: nano-vllm, chapter 9 ("Scheduler to GPU Execution").
"""

from checks.harness.paging.rows import PagedWork, Row, request_tokens
from checks.harness.paging.watch import PagedWatch
from engine.paged.inputs import PagedShape
from spec.core.records import DECODE
from spec.nano_vllm.config import NanoVllmConfig
from spec.nano_vllm.formulas import captured_sizes
from spec.nano_vllm.records import Context, Step


def nano_vllm_watch(ctx: Context) -> PagedWatch[Step]:
    """The device next to a nano-vLLM scheduler."""
    return PagedWatch(
        nano_vllm_shape(ctx.config), ctx.requests, lambda step: nano_vllm_work(ctx, step)
    )


def nano_vllm_shape(config: NanoVllmConfig) -> PagedShape:
    """The device that a nano-vLLM scheduler of this configuration works for."""
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


def nano_vllm_work(ctx: Context, step: Step) -> PagedWork:
    """A prefill or a decode: each row computes what it is behind, and samples one token."""
    rows = {}
    for row in step.batch:
        cached = row.computed - step.scheduled[row.id]
        tokens = request_tokens(ctx.requests[row.id], cached, row.computed)
        rows[row.id] = Row(tokens, cached, row.blocks, samples=1, due=1)
    return PagedWork(rows, is_captured=step.kind == DECODE)
