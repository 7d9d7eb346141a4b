"""Steps of nano-vLLM as work of the paged device.

Source: nano-vllm, chapter 9 ("Scheduler to GPU Execution").
"""

from functools import partial

from checks.harness.paging.rows import PagedWork, request_tokens
from checks.harness.paging.watch import PagedWatch
from engine.nano_vllm.model_input import paged_shape
from engine.paged.rows import Row
from spec.core.records import DECODE
from spec.nano_vllm.records import Context, Step


def nano_vllm_watch(ctx: Context) -> PagedWatch[Step]:
    """The watch that runs a device beside a nano-vLLM scheduler."""
    return PagedWatch(paged_shape(ctx.config), ctx.requests, partial(nano_vllm_work, ctx))


def nano_vllm_work(ctx: Context, step: Step) -> PagedWork:
    """A prefill or decode step: each row computes tokens, and samples one unless it is cut."""
    rows = {}
    for row in step.batch:
        cached = row.computed - step.scheduled[row.id]
        tokens = request_tokens(ctx.requests[row.id], cached, row.computed)
        samples = len(step.outputs.get(row.id, ()))
        rows[row.id] = Row(tokens, cached, row.blocks, samples, due=samples)
    return PagedWork(rows, is_captured=step.kind == DECODE)
