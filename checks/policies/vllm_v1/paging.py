"""Steps of vLLM V1 as work of the paged device.

Source: vllm-v1, "Prefix Caching" (with its remote cache) and "Speculative Decoding".
"""

from checks.harness.paging.rows import Load, PagedWork, request_tokens
from checks.harness.paging.watch import PagedWatch, paged_watch
from engine.paged.rows import Row
from spec.core.requests import VOCABULARY, Request
from spec.vllm_v1 import records as v1


def vllm_v1_watch(ctx: v1.Context) -> PagedWatch[v1.Step]:
    """The device next to a vLLM V1 scheduler."""
    return paged_watch(
        ctx,
        vllm_v1_work,
        first_block=1,
        max_num_batched_tokens=ctx.config.token_budget,
        num_speculative_tokens=ctx.config.num_speculative_tokens,
    )


def vllm_v1_work(ctx: v1.Context, step: v1.Step) -> PagedWork:
    """Every request catches up; loads that ended since the step before come first.

    A request that lacks what a connector should have brought computes all of it again, so that
    nothing which it computes in this step counts: it is left out, and its blocks are as good as
    never written.
    """
    planned = {one.id: one for one in step.planned.running}
    computing = [planned[one] for one in step.scheduled if one not in step.failed_loads]
    loads = _ended_loads(ctx, step)
    for one in computing:
        if one.id in step.external:
            loads.append(_load(ctx, one, one.computed - step.external[one.id]))
    rows = {one.id: _vllm_v1_row(ctx.requests[one.id], step, one) for one in computing}
    return PagedWork(rows, loads)


def _vllm_v1_row(request: Request, step: v1.Step, one: v1.Sequence) -> Row:
    """The row with its drafts: those that are accepted are its next tokens, the others are not."""
    end = one.computed + step.scheduled[one.id]
    drafts, accepted = step.drafts.get(one.id, 0), step.accepted.get(one.id, 0)
    tokens = request_tokens(request, one.computed, end)
    rejected = len(tokens) - drafts + accepted
    tokens[rejected:] = (tokens[rejected:] + 1) % VOCABULARY
    if end < one.tokens:
        return Row(tokens, one.computed, one.blocks, samples=0, due=0)
    return Row(tokens, one.computed, one.blocks, samples=drafts + 1, due=accepted + 1)


def _ended_loads(ctx: v1.Context, step: v1.Step) -> list[Load]:
    """Asynchronous loads that are complete; what stood before them was cached here already."""
    promoted = {event.id for event in step.happened("promote")}
    cached = step.before.pool.keys
    return [
        _load(ctx, one, sum(block in cached for block in one.blocks) * ctx.config.block_size)
        for one in step.before.skipped
        if one.id in promoted and one.load is v1.Load.LOADED and one.id not in step.before.lost
    ]


def _load(ctx: v1.Context, one: v1.Sequence, start: int) -> Load:
    return Load(request_tokens(ctx.requests[one.id], 0, one.computed), start, one.blocks)
