"""Rules of priority: which request may have the next step.

Source: spyre, section "Priority rules"; the queue order is V1's, which the plugin inherits.
"""

from collections.abc import Iterator

from spec.core.judging import ids
from spec.core.records import DECODE, IDLE, PREFILL
from spec.core.rule import Source
from spec.spyre.records import Context, Step
from spec.spyre.rules.admission import is_condition, may_join
from spec.spyre.rules.observed import (
    BY_WIDTH,
    entering,
    final_width,
    in_line,
    is_wide,
    lacks_next_chunk,
    lacks_worst_case,
    may_be_chosen,
    pending,
    rows_in_slots,
)
from spec.spyre.rules.registry import (
    always,
    between,
    guard,
    of_step,
    release,
    spyre,
    witness,
)
from spec.spyre.rules.turns import holding_up, is_full
from spec.spyre.state import Sequence, State
from spec.spyre.variants import Queue


@always("SPY-PRI-1", spyre("Priority rules, One prefill at a time"))
@witness(lambda _, step: step.before.prefilling and step.before.waiting)
def one_prefill_at_a_time(_ctx: Context, state: State) -> Iterator[str]:
    """At most one request is in its prefill phase."""
    # Partly prefilled requests are found by their tokens, wherever they are queued.
    partial = [row.id for row in state.present if 0 < row.computed < row.prefill_len]
    slot = [] if state.prefilling is None else [state.prefilling.id]
    if len({*partial, *slot}) > 1:
        yield f"prefilling: {partial}"


@of_step("SPY-PRI-2", spyre("Priority rules, Ongoing prefill has priority"))
@witness(lambda _, step: step.kind == PREFILL and step.before.prefilling and step.before.waiting)
def ongoing_prefill_first(_ctx: Context, step: Step) -> Iterator[str]:
    """A request whose prefill has begun goes before any new request."""
    # None is admitted while a prefill is under way.
    ongoing = step.before.prefilling
    if ongoing is None or step.chunk is None:
        return
    if step.chunk.id != ongoing.id or step.happened("admit"):
        yield f"chunk of {step.chunk.id} while {ongoing.id} is being prefilled"


@of_step(
    "SPY-PRI-3",
    spyre("Priority rules, Prefill-decode interleaving"),
    applies=lambda config: config.interleave,
)
@witness(lambda _, step: step.refusal == "SPY-PRI-3" and step.kind == DECODE)
def prefills_are_interleaved(_ctx: Context, step: Step) -> Iterator[str]:
    """With interleaving, two prefill steps do not follow each other while requests decode."""
    # Paused requests do not decode and so do not count. What the step before was, SPY-PRI-12 says.
    if step.kind == PREFILL == step.before.last_kind and step.before.decoding:
        yield f"second prefill step in a row, {len(step.before.decoding)} decoding"


@of_step("SPY-PRI-4", spyre("Priority rules, No idle steps"))
@witness(lambda _, step: step.refusal is not None and step.kind == DECODE)
def no_idle_step(_ctx: Context, step: Step) -> Iterator[str]:
    """No step is idle while a request is pending."""
    # Something is computed whenever a request waits, prefills, decodes or is paused.
    if pending(step.before) and (step.kind == IDLE or not step.scheduled):
        yield f"{step.kind} step, {pending(step.before)} requests pending"


@of_step("SPY-PRI-5", spyre("Priority rules"), applies=lambda config: config.queue is Queue.FCFS)
@witness(lambda _, step: step.happened("admit") and len(step.before.waiting) > 1)
def first_come_first_served(ctx: Context, step: Step) -> Iterator[str]:
    """Requests are admitted in the order of their arrival."""
    # What is admitted was the head of the waiting queue.
    head = in_line(ctx, step.before)
    for event in step.happened("admit"):
        if head is None or event.id != head.id:
            yield f"{event.id} admitted before {step.before.waiting[0].id}"


@of_step("SPY-PRI-6", spyre("Priority rules, No idle steps"))
@witness(lambda _, step: step.kind == PREFILL and step.before.decoding)
def prefill_goes_first(ctx: Context, step: Step) -> Iterator[str]:
    """A prefill goes before a decode: a decode step needs a rule that refuses the prefill."""
    # The rule is one of this configuration and is true of the request that it refuses. Where others
    # may overtake that one, they are refused as well; the next two are looked at.
    held = step.before.prefilling or in_line(ctx, step.before)
    if held is None or (step.kind == PREFILL and step.refusal is None):
        return
    if step.refusal is None or not _may_refuse(ctx, step.before, held, step.refusal):
        yield f"{step.kind} step, prefill of {held.id} refused by {step.refusal}"
        return
    if step.kind != PREFILL and held != step.before.prefilling:
        for other in _overtaking(ctx, step.before, step.refusal):
            yield f"{step.kind} step, no rule refuses the prefill of {other.id}"


_NEXT_REQUESTS = 2  # requests behind the one that was refused


def _overtaking(ctx: Context, state: State, refusal: str) -> Iterator[Sequence]:
    """Of the next requests in the queue those that may go before the refused head."""
    # True of them, too; or the refused one holds them up.
    stops = {"SPY-PRI-3", "SPY-PAU-4", "SPY-ADM-1", "SPY-ADM-3", "SPY-RES-1", "SPY-STR-1"}
    if ctx.config.queue is not Queue.OVERTAKING or refusal in stops or is_full(ctx, state):
        return
    waiting = may_be_chosen(ctx, state, state.waiting)
    for row in waiting[1 : 1 + _NEXT_REQUESTS]:
        if ctx.config.reservation and lacks_worst_case(ctx, state, row):
            return  # a lack of blocks stops the search
        if row.id in state.compiling and may_join(ctx, state, row):
            return  # in 2.6.3 it holds those behind it up
        if may_join(ctx, state, row) and (
            ctx.config.reservation or not lacks_next_chunk(ctx, state, row)
        ):
            yield row


def _may_refuse(ctx: Context, state: State, row: Sequence, rule: str) -> bool:
    """True if this rule keeps the request from its next chunk.

    Of a lack of blocks, and of the conditions of joining, it is true if the rule can be the reason
    here: whether it is true then is what that rule says itself, and SPY-RES-4 of SPY-RES-1.
    """
    config, waits = ctx.config, row != state.prefilling
    rows = rows_in_slots(state)
    reasons = {
        "SPY-PRI-3": config.interleave and state.last_kind == PREFILL and state.decoding,
        "SPY-STR-1": waits and row.id in state.compiling,
        "SPY-PRI-11": waits and _waits_for_rows(ctx, state, row),
        "SPY-PAU-4": state.paused and rows,
        "SPY-ADM-1": waits and rows >= config.max_num_seqs,
        "SPY-ADM-3": len(state.decoding) + len(state.paused) >= config.max_num_seqs,
        "SPY-RES-1": waits and config.reservation,
        "BLK-9": not config.reservation,
    }
    return bool(reasons.get(rule, is_condition(config, rule)))


@of_step(
    "SPY-PRI-7",
    release("prefill candidates"),
    applies=lambda config: config.queue is Queue.OVERTAKING,
)
@witness(
    lambda _, step: any(event.id != step.before.waiting[0].id for event in step.happened("admit"))
)
def only_the_refused_are_overtaken(ctx: Context, step: Step) -> Iterator[str]:
    """With overtaking, only requests that a rule refuses are stepped over."""
    # A lack of blocks stops the search instead.
    head = in_line(ctx, step.before)
    for event in step.happened("admit"):
        overtaken = head is None or event.id != head.id
        if overtaken and step.refusal in (None, "SPY-RES-1"):
            yield f"{event.id} overtook {step.before.waiting[0].id}, refusal {step.refusal}"


_OURS = Source("lockstep", "queue = aligned")


@of_step("SPY-PRI-8", _OURS, applies=lambda config: config.queue in BY_WIDTH)
@witness(
    lambda _, step: any(event.id != step.before.waiting[0].id for event in step.happened("admit"))
)
def narrowest_first(ctx: Context, step: Step) -> Iterator[str]:
    """By width, a request that is admitted has the narrowest row of all that it is chosen from,
    prompt and most output, and came first of those as narrow; a slot's share and a chunk are alike.
    """
    narrowest = in_line(ctx, step.before)
    for event in step.happened("admit"):
        if narrowest is not None and event.id != narrowest.id:
            width = final_width(ctx, narrowest)
            yield f"{event.id} admitted before {narrowest.id}, {width} tokens wide"


@of_step("SPY-PRI-9", _OURS, applies=lambda config: config.queue is Queue.ALIGNED)
@witness(lambda _, step: step.before.cohort and step.happened("admit"))
def cohort_goes_first(ctx: Context, step: Step) -> Iterator[str]:
    """With `queue = aligned`, the first `max_overtakes` + 1 of the queue are all admitted before
    any other; then the next as many.
    """
    # A request that is preempted meanwhile waits in front and belongs to them.
    before, after, most = step.before, step.after, ctx.config.max_overtakes + 1
    admitted = ids(step.happened("admit"))
    begins = bool(admitted) and not before.cohort
    cohort = min(most, len(before.waiting)) if begins else before.cohort
    if others := admitted & ids(before.waiting[cohort:]):
        yield f"{sorted(others)} admitted, the cohort is the first {cohort}"
    waiting = [row.id for row in after.waiting]
    stayed = [row.id for row in before.waiting if row.id in waiting]
    back = waiting[: len(waiting) - len(stayed)]
    if waiting != [*back, *stayed]:
        yield f"{waiting} wait where {stayed} waited, and {back} are back"
    remaining = len(ids(before.waiting[:cohort]) & {*waiting})
    remaining += len(back) if before.cohort else 0
    if after.cohort != remaining:
        yield f"{after.cohort} in the cohort, {remaining} are left of it"


@between("SPY-PRI-10", _OURS, applies=lambda config: config.queue is Queue.ALIGNED)
@witness(lambda _, step: step.before.cohort)
def cohort_only_shrinks(_ctx: Context, before: State, after: State) -> Iterator[str]:
    """Between two steps only requests that go away leave the cohort, and none joins it."""
    remaining = len(ids(before.waiting[: before.cohort]) & ids(after.waiting))
    if after.cohort != remaining:
        yield f"{after.cohort} in the cohort, {remaining} are left of it"


@guard("SPY-PRI-11", _OURS, applies=lambda config: config.queue in BY_WIDTH)
def wide_one_waits_for_rows(ctx: Context, step: Step) -> Iterator[str]:
    """By width, a request wider than a slot's share and a chunk is admitted only while the rows
    that decode are at most one more than the requests that wait, itself among them.
    """
    before = step.before
    for event in step.happened("admit"):
        if _waits_for_rows(ctx, before, entering(step, event.id)):
            rows, waiting = len(before.decoding), len(before.waiting)
            yield f"{event.id} admitted, {rows} rows decode and {waiting} requests wait"


def _waits_for_rows(ctx: Context, state: State, row: Sequence) -> bool:
    """True if a waiting request is wide, and there are two rows more than requests that wait."""
    more = len(state.decoding) - len(state.waiting)
    return ctx.config.queue in BY_WIDTH and more >= 2 and is_wide(ctx, row)


@of_step("SPY-PRI-12", spyre("Priority rules, Prefill-decode interleaving"))
@witness(lambda _, step: step.kind == DECODE and step.before.last_kind == PREFILL)
def kind_is_remembered(_ctx: Context, step: Step) -> Iterator[str]:
    """What kind a step was is remembered until the next one has been taken."""
    # Under every configuration: the order of the running queue depends on it, too.
    if step.after.last_kind != step.kind:
        yield f"{step.kind} step noted as {step.after.last_kind}"


@of_step("SPY-PRI-13", Source("vllm-v1", "Preemption"))
@witness(lambda _, step: step.happened("admit", "preempt") and step.after.waiting)
def queue_keeps_its_order(ctx: Context, step: Step) -> Iterator[str]:
    """A step takes out of the queue what it admits and puts in front what it preempts, the last
    preempted first; the others keep their places, and are as they were.
    """
    # What is preempted is new in the queue but for the tokens that it generated.
    before, after = step.before, step.after
    generated = {row.id: row.generated for row in before.admitted}
    preempted = [
        Sequence(id_, ctx.requests[id_].prompt_len + count, generated=count)
        for id_ in reversed([event.id for event in step.happened("preempt")])
        for count in [generated.get(id_, 0)]
    ]
    front, others = [*after.waiting[: len(preempted)]], [*after.waiting[len(preempted) :]]
    if front != preempted:
        yield f"preempted {preempted}, first in the queue are {front}"
    admitted = ids(step.happened("admit"))
    stayed = [row for row in before.waiting if row.id not in admitted]
    held = holding_up(ctx, before)
    if held is not None and not step.happened("admit"):
        stayed = [held, *(row for row in stayed if row is not held)]
    if others != stayed:
        yield f"waiting {[row.id for row in others]} where {[row.id for row in stayed]} waited"


_OVERTAKEN = 32  # requests that are judged of those that are stepped over, the last ones


@of_step(
    "SPY-PRI-14",
    release("prefill candidates"),
    applies=lambda config: config.queue is Queue.OVERTAKING,
)
@witness(
    lambda _, step: any(
        event.id not in ids(step.before.waiting[:2]) for event in step.happened("admit")
    )
)
def first_that_may_goes(ctx: Context, step: Step) -> Iterator[str]:
    """With overtaking, the request that is admitted is the first in the queue that no rule refuses,
    and none before it lacks blocks.
    """
    # Each that is stepped over may not join, or lacks the blocks of its next chunk where none are
    # reserved. Where they are, a lack of blocks ends the search.
    before, reserves = step.before, ctx.config.reservation
    for event in step.happened("admit"):
        waiting = may_be_chosen(ctx, before, before.waiting)
        place = [row.id for row in waiting].index(event.id)
        for row in waiting[max(place - _OVERTAKEN, 0) : place]:
            if reserves and lacks_worst_case(ctx, before, row):
                yield f"{event.id} admitted behind {row.id}, which lacks blocks"
            elif may_join(ctx, before, row) and (
                reserves or not lacks_next_chunk(ctx, before, row)
            ):
                yield f"{event.id} admitted before {row.id}, which no rule refuses"


@always("SPY-PRI-15", _OURS, applies=lambda config: config.queue is not Queue.ALIGNED)
@witness(lambda _, step: len(step.before.waiting) > 1)
def no_cohort_elsewhere(_ctx: Context, state: State) -> Iterator[str]:
    """Only with `queue = aligned` there is a cohort."""
    if state.cohort:
        yield f"{state.cohort} in the cohort"
