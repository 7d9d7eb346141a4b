"""Steps of vLLM V1 as work of the paged device.

Source: vllm-v1, "Prefix Caching" (with its remote cache) and "Speculative Decoding".
"""

from collections.abc import Iterator
from functools import partial

from checks.harness.paging.rows import Load, PagedWork, request_tokens
from checks.harness.paging.watch import PagedWatch, paged_watch
from engine.paged.rows import Row
from spec.core.requests import VOCABULARY, Request
from spec.vllm_v1 import records as v1
from spec.vllm_v1.config import Connector


def vllm_v1_watch(ctx: v1.Context) -> PagedWatch[v1.Step]:
    """The watch that runs a device beside a vLLM V1 scheduler.

    With steps in flight the device's tokens are compared when a step takes off; those that a
    request is given later are judged by V1-SPC-4.
    """
    watch: PagedWatch[v1.Step] = paged_watch(
        ctx,
        vllm_v1_work,
        first_block=1,
        max_num_batched_tokens=ctx.config.token_budget,
        num_speculative_tokens=ctx.config.num_speculative_tokens,
    )
    if ctx.config.steps_in_flight:
        watch.read_outputs = partial(_tokens_in_flight, ctx)
    return watch


def _tokens_in_flight(ctx: v1.Context, step: v1.Step) -> dict[str, tuple[int, ...]]:
    """The tokens that the step samples up to the ends of its requests, as each has them alone."""
    tokens: dict[str, tuple[int, ...]] = {}
    for row in step.planned.running:
        request, index = ctx.requests[row.id], row.generated + row.placeholders
        end = row.computed + step.scheduled.get(row.id, 0)
        samples = row.id in step.scheduled and end >= row.tokens + row.placeholders
        if samples and index < request.end:
            tokens[row.id] = (request.output_token(index),)
    return tokens


def vllm_v1_work(ctx: v1.Context, step: v1.Step) -> PagedWork:
    """The device's work: loads that ended since the last step, then the tokens of each request.

    With drafts in flight it is not known which slots are written when a step takes off, nor with a
    load in flight whether it comes. A request whose load failed computes again what did not come.
    Its tokens of this step do not count, so that it is left out, as if its blocks were never
    written.
    """
    loads_at_once = ctx.config.connector is Connector.SYNC
    if ctx.config.steps_in_flight and (ctx.config.num_speculative_tokens or loads_at_once):
        return PagedWork({}, is_known=False)
    planned = {row.id: row for row in step.planned.running}
    lost, size = step.after.lost - step.before.lost, ctx.config.block_size
    without = lost | {*step.failed_loads}
    computing = [planned[id_] for id_ in step.scheduled if id_ not in without]
    loads = _ended_loads(ctx, step)
    for row in step.planned.running:
        external, end = step.external.get(row.id, 0), row.computed
        came = min(ctx.if_lost.get(row.id, 0), (end - 1) // size * size) if row.id in lost else end
        loads += _load(ctx, row, end - external, came)
    rows = {row.id: _vllm_v1_row(ctx.requests[row.id], step, row) for row in computing}
    return PagedWork(rows, loads)


def _vllm_v1_row(request: Request, step: v1.Step, sequence: v1.Sequence) -> Row:
    """The row with its drafts: accepted drafts are its next tokens, rejected ones differ."""
    end = sequence.computed + step.scheduled[sequence.id]
    drafts, accepted = step.drafts.get(sequence.id, 0), step.accepted.get(sequence.id, 0)
    tokens = request_tokens(request, sequence.computed, end)
    rejected = len(tokens) - drafts + accepted
    tokens[rejected:] = (tokens[rejected:] + 1) % VOCABULARY
    if end < sequence.tokens + sequence.placeholders:
        return Row(tokens, sequence.computed, sequence.blocks, samples=0, due=0)
    if sequence.generated + sequence.placeholders >= request.end:  # it will be discarded
        return Row(tokens, sequence.computed, sequence.blocks, samples=1, due=0)
    return Row(tokens, sequence.computed, sequence.blocks, samples=drafts + 1, due=accepted + 1)


def _ended_loads(ctx: v1.Context, step: v1.Step) -> list[Load]:
    """Asynchronous loads that ended, each after the request's cached tokens."""
    promoted, loads = {event.id for event in step.happened("promote")}, list[Load]()
    cached = step.before.pool.keys
    for row in step.before.skipped:
        if row.id in promoted:
            start = sum(block in cached for block in row.blocks) * ctx.config.block_size
            is_lost = row.load is not v1.Load.LOADED or row.id in step.before.lost
            came = min(ctx.if_lost.get(row.id, 0), row.computed) if is_lost else row.computed
            loads += _load(ctx, row, start, came)
    return loads


def _load(ctx: v1.Context, row: v1.Sequence, start: int, end: int) -> Iterator[Load]:
    """The load of the request's tokens from `start` to `end`, if there are any."""
    if start < end:
        yield Load(request_tokens(ctx.requests[row.id], 0, end), start, row.blocks)
