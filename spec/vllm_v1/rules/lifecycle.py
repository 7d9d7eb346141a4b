"""Rules of a request's life: one place, one end, reported once; and the scheduler's statistics."""

from collections.abc import Iterator

from attrs import evolve

from spec.core import judging
from spec.core.changes import Change, change_between, ids
from spec.core.records import SomeContext
from spec.vllm_v1.records import Context, Sequence, State, Step
from spec.vllm_v1.rules.counting import blocks_of, pool_blocks, slots_up_to
from spec.vllm_v1.rules.registry import (
    always,
    between,
    by_id,
    code,
    looking_at,
    names,
    of_step,
    text,
    witness,
)

_CORE = code("request lifecycle")


@always("V1-LIF-1", _CORE, look=looking_at(lambda _ctx, change: change.places))
@witness(lambda _, step: len(step.after.present) > 1)
def one_place_each(_ctx: Context, state: State) -> Iterator[str]:
    """A request is in exactly one place: waiting, skipped, running, or gone."""
    # Counted over all places.
    yield from judging.one_place_each(state)


@of_step("V1-LIF-2", _CORE, witness=lambda _, step: step.finished and step.after.present)
def no_request_is_lost(_ctx: Context, step: Step) -> Iterator[str]:
    """No step loses or invents a request."""
    # A request that was there is there, has finished, or its client left meanwhile.
    change = change_between(step.before, step.after)
    before, after = names(change)
    after |= step.leavers | frozenset(step.finished)
    if before != after:
        yield f"before {sorted(before)}, after {sorted(after)}"
    gone = len(step.before.finished) + len(step.before.aborted)
    now = len(step.after.finished) + len(step.after.aborted)
    if now != gone + len(change.finished) + len(change.aborted):
        yield f"{gone} had left, {now} after the step"


@of_step("V1-LIF-4", text("The Core Problem"), witness=lambda _, step: len(step.finished) > 1)
def finishes_once(ctx: Context, step: Step) -> Iterator[str]:
    """A request finishes once, with max_tokens tokens or when it samples the end of sequence, and
    in that step.
    """
    # Its tokens are those that the step says it sampled.
    change = change_between(step.before, step.after)
    if {*step.finished} != change.finished:
        yield f"reported {list(step.finished)}"
    rows, after = by_id(change.left), by_id(change.entered)
    for one_id, tokens in step.outputs.items():
        request, count = ctx.requests[one_id], rows[one_id].generated + len(tokens)
        is_over = count in (request.max_tokens, request.end) or one_id in step.ended
        if count > request.max_tokens or is_over == (one_id in after):
            yield f"{one_id} has {count} tokens"
        if one_id in after and after[one_id].generated != count:
            yield f"{one_id} has {after[one_id].generated} tokens, sampled {count}"
    for one in change.entered:
        if one.generated >= ctx.requests[one.id].max_tokens:
            yield f"{one.id} stays with {one.generated} tokens"


@of_step("V1-LIF-5", _CORE, witness=lambda _, step: len(step.reported) > 1)
def reported_once(_ctx: Context, step: Step) -> Iterator[str]:
    """A request that has left is reported exactly once, by the next step."""
    # An abort between the steps counts for the next one too, and one while the step runs.
    left = {*step.finished} | step.leavers
    if sorted(step.reported) != sorted(step.before.unreported) or step.after.unreported != left:
        yield f"reported {list(step.reported)}, left {sorted(step.before.unreported)}"


@between("V1-LIF-6", _CORE)
@witness(lambda _, step: any(one in step.before.aborted for one in step.reported))
def aborts_are_kept(_ctx: Context, before: State, after: State) -> Iterator[str]:
    """A request that is aborted between two steps is kept for the next report."""
    # No other request comes or goes there.
    if after.unreported != before.unreported | change_between(before, after).aborted:
        yield f"to report {sorted(after.unreported)}"


@looking_at
def _newcomers(_ctx: SomeContext, change: Change[State]) -> State | None:
    """Look at requests that were not there: what the others need is no more than it was."""
    known = ids(change.left)
    skipped, waiting, running = (
        tuple(one for one in queue if one.id not in known)
        for queue in (change.after.skipped, change.queue[1], change.after.running)
    )
    return evolve(change.after, skipped=skipped, waiting=waiting, running=running)


@always("V1-LIF-7", code("engine core"), look=_newcomers)
@witness(
    lambda ctx, step: any(
        _needed(ctx, one) == pool_blocks(ctx.config) for one in step.before.present
    )
)
def each_request_fits_alone(ctx: Context, state: State) -> Iterator[str]:
    """A request larger than the whole pool is refused: each that is queued fits in alone."""
    # With all the tokens that it may have.
    blocks = pool_blocks(ctx.config)
    for one in state.present:
        if _needed(ctx, one) > blocks:
            yield f"{one.id} needs {_needed(ctx, one)} of {blocks} blocks"


def _needed(ctx: Context, one: Sequence) -> int:
    # Its last token is never computed.
    request = ctx.requests[one.id]
    end = request.prompt_len + request.max_tokens - 1 + ctx.config.num_speculative_tokens
    return blocks_of(ctx, slots_up_to(ctx, end))


@of_step("V1-STA-1", text("Real-World Tuning"))
@witness(lambda _, step: step.statistics.usage > 0 and step.statistics.waiting > 0)
def statistics_are_right(ctx: Context, step: Step) -> Iterator[str]:
    """The statistics count the waiting and the running, and the part of the blocks that is held."""
    # Compared with the state after the step, and with the blocks that are configured.
    told, after = step.statistics, step.after
    usage = len(after.pool.references) / pool_blocks(ctx.config)
    counted = (len(after.waiting) + len(after.skipped), len(after.running))
    if (told.waiting, told.running) != counted or abs(told.usage - usage) > 1e-9:
        says = (told.waiting, told.running, told.usage)
        yield f"waiting, running, usage: told {says}, counted {(*counted, usage)}"
