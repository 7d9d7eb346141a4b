"""Rules of a request's life: one place, one end, reported once; and the scheduler's statistics."""

from collections.abc import Collection, Iterator

from spec.core import judging
from spec.core.judging import ids
from spec.vllm_v1.config import Connector
from spec.vllm_v1.records import Context, Lookups, Sequence, State, Step
from spec.vllm_v1.rules.counting import needed_blocks, needed_slots, next_turns, pool_blocks
from spec.vllm_v1.rules.group_counting import most_held
from spec.vllm_v1.rules.registry import (
    always,
    between,
    by_id,
    code,
    hits,
    of_step,
    text,
    witness,
)

_CORE = code("request lifecycle")


@always("V1-LIF-1", _CORE)
@witness(lambda _, step: len(step.after.present) > 1)
def one_place_each(_ctx: Context, state: State) -> Iterator[str]:
    """A request is in exactly one place: waiting, skipped, running, or gone."""
    # Counted over all places.
    yield from judging.one_place_each(state)


@of_step("V1-LIF-2", _CORE, witness=lambda _, step: step.finished and step.after.present)
def no_request_is_lost(ctx: Context, step: Step) -> Iterator[str]:
    """No step loses or invents a request."""
    # A request that was there is there, has finished, or its client left meanwhile. A turn of a
    # session is there when the one before has finished.
    before = ids(step.before.present) | {*next_turns(ctx, step)}
    after = ids(step.after.present) | step.leavers | {*step.finished}
    if before != after:
        yield f"before {sorted(before)}, after {sorted(after)}"
    for left, now in (
        (step.before.finished, step.after.finished),
        (step.before.aborted, step.after.aborted),
    ):
        if len(now) != len(left) + len(now - left):
            yield f"{len(left)} had left, {len(now)} after the step"


@of_step("V1-LIF-4", text("The Core Problem"), witness=lambda _, step: len(step.finished) > 1)
def finishes_once(ctx: Context, step: Step) -> Iterator[str]:
    """A request finishes once, with max_tokens tokens or when it samples the end of sequence, and
    in that step.
    """
    # Its tokens are those that the step says it sampled.
    if {*step.finished} != step.after.finished - step.before.finished:
        yield f"reported {list(step.finished)}"
    rows, after = by_id(step.before.present), by_id(step.after.present)
    for id_, tokens in step.outputs.items():
        request, count = ctx.requests[id_], rows[id_].generated + len(tokens)
        is_over = count in (request.max_tokens, request.end) or id_ in step.ended
        if count > request.max_tokens or is_over == (id_ in after):
            yield f"{id_} has {count} tokens"
        if id_ in after and after[id_].generated != count:
            yield f"{id_} has {after[id_].generated} tokens, sampled {count}"
    for row in after.values():
        if row.generated >= ctx.requests[row.id].max_tokens:
            yield f"{row.id} stays with {row.generated} tokens"


@of_step("V1-LIF-5", _CORE, witness=lambda _, step: len(step.reported) > 1)
def reported_once(ctx: Context, step: Step) -> Iterator[str]:
    """A request that has left is reported exactly once, by the next step; a turn of a session only
    if none follows.
    """
    # An abort between the steps counts for the next one too, and one while the step runs.
    left = {id_ for id_ in step.finished if ctx.requests[id_].continued_by is None} | step.leavers
    if sorted(step.reported) != sorted(step.before.unreported) or step.after.unreported != left:
        yield f"reported {list(step.reported)}, left {sorted(step.before.unreported)}"


@between("V1-LIF-6", _CORE)
@witness(lambda _, step: any(id_ in step.before.aborted for id_ in step.reported))
def aborts_are_kept(_ctx: Context, before: State, after: State) -> Iterator[str]:
    """A request that is aborted between two steps is kept for the next report."""
    # No other request comes or goes there.
    if after.unreported != before.unreported | (after.aborted - before.aborted):
        yield f"to report {sorted(after.unreported)}"


@always("V1-LIF-7", code("check of the KV cache at the start"))
@witness(
    lambda ctx, step: any(
        _needed(ctx, row) == pool_blocks(ctx.config) for row in step.before.present
    )
)
def each_request_fits_alone(ctx: Context, state: State) -> Iterator[str]:
    """A request larger than the whole pool is refused: each that is queued fits in alone."""
    # With all the tokens that it may have.
    blocks = pool_blocks(ctx.config)
    for row in state.present:
        if _needed(ctx, row) > blocks:
            yield f"{row.id} needs {_needed(ctx, row)} of {blocks} blocks"


def _needed(ctx: Context, row: Sequence) -> int:
    # Its last token is never computed.
    request = ctx.requests[row.id]
    end = request.prompt_len + request.max_tokens - 1 + ctx.config.num_speculative_tokens
    further = (most_held(ctx, group, end) for group in ctx.config.groups)
    return needed_blocks(ctx, needed_slots(ctx, end)) + sum(further)


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


@of_step("V1-STA-2", code("prefix cache statistics"))
@witness(lambda _, step: 0 < step.lookups.found < step.lookups.asked)
def lookups_are_counted_once(ctx: Context, step: Step) -> Iterator[str]:
    """The statistics of lookups count a request when it begins, not each time it is looked at: its
    tokens as asked of the prefix cache, and the others as asked of the connector; and one that was
    preempted apart from the others.
    """
    # One that has loaded goes on.
    was, planned = by_id(step.before.queued), by_id(step.planned.present)
    known = ids(step.happened("admit", "load")) & was.keys() & planned.keys()
    begun = [planned[id_] for id_ in known if not was[id_].computed]
    resumed = [row for row in begun if row.id in step.before.preempted]
    first = [row for row in begun if row not in resumed]
    counted = _lookups(ctx, step, first), _lookups(ctx, step, resumed)
    if (step.lookups, step.resumed_lookups) != counted:
        yield f"told {step.lookups} and {step.resumed_lookups}, counted {counted}"


def _lookups(ctx: Context, step: Step, begun: Collection[Sequence]) -> Lookups:
    """What these requests asked for; what they have computed when all is decided was found."""
    tokens, found = sum(row.tokens for row in begun), sum(row.computed for row in begun)
    asked = sum(row.tokens for row in begun if ctx.requests[row.id].reads_cache)
    taken = hits(step)
    local = sum(len(taken.get(row.id, ())) for row in begun) * ctx.config.block_size
    return Lookups(
        asked=asked if ctx.config.prefix_caching else 0,
        found=local,
        asked_external=0 if ctx.config.connector is Connector.NONE else tokens - local,
        found_external=found - local,
    )
