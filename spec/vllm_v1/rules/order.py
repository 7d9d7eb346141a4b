"""Rules of the queues and of the tokens that a step hands out.

Source: vllm-v1, "Token Budget Management" and "Memory Management & Preemption".
"""

from collections.abc import Iterable, Iterator
from heapq import nsmallest

from spec.core.judging import ids
from spec.vllm_v1.config import Scheduling, VllmV1Config
from spec.vllm_v1.records import Context, Load, Sequence, Step
from spec.vllm_v1.rules.counting import (
    cached_throughout,
    next_turns,
    places_taken,
    rank,
    share,
    steps_over,
    token_limit,
)
from spec.vllm_v1.rules.registry import by_id, code, of_step, text, witness
from spec.vllm_v1.rules.spans import lacks_encoding


@of_step("V1-ORD-1", text("Token Budget Management"))
@witness(lambda _, step: step.before.running and step.admitted)
def running_go_first(_ctx: Context, step: Step) -> Iterator[str]:
    """Running requests go first and keep their order; those admitted stand behind them."""
    # The tokens are handed out in the order of the running queue.
    kept = [row.id for row in step.before.running if row.id not in step.preempted]
    queue = [row.id for row in step.planned.running]
    if queue != [*kept, *step.admitted]:
        yield f"running {queue}, were {kept}, admitted {list(step.admitted)}"
    turns = [id_ for id_ in queue if id_ in step.scheduled]
    if turns != list(step.scheduled):
        yield f"scheduled {list(step.scheduled)}, running {queue}"


def _no_stepping_over(config: VllmV1Config) -> bool:
    return not steps_over(config)


@of_step("V1-ORD-2", code("waiting loop"), applies=_no_stepping_over)
@witness(lambda _, step: len(step.before.queued) > 1 and step.admitted)
def queue_is_not_overtaken(ctx: Context, step: Step) -> Iterator[str]:
    """Requests are admitted in the order of the queue, in 0.33.0 those that have loaded first by
    priority, too; only one that loads, that is held back for its grammar or the connector's answer,
    or, in 0.33.0, whose first token lacks an encoding, is passed over.
    """
    # All that stood before the last that was admitted are admitted too, or passed over.
    if not step.admitted:
        return
    loading = {row.id for row in step.planned.skipped if row.load is Load.LOADING}
    loading |= step.before.held_back
    if ctx.config.behaviour.passes_over_unencoded:
        loading |= {row.id for row in step.planned.queued if True in lacks_encoding(ctx, step, row)}
    count, queue = len(step.admitted) + len(loading), step.before.queued
    config = ctx.config
    if config.scheduling is Scheduling.PRIORITY and not config.behaviour.holders_first:
        queue = tuple(nsmallest(count, queue, key=lambda row: rank(ctx, row)))
    could = [row.id for row in queue[:count] if row.id not in loading]
    if could[: len(step.admitted)] != list(step.admitted):
        yield f"admitted {list(step.admitted)}, queue {could}"


@of_step("V1-ORD-3", code("waiting loop"))
@witness(lambda _, step: step.planned.waiting and step.admitted)
def queue_keeps_its_order(ctx: Context, step: Step) -> Iterator[str]:
    """A request that is not admitted keeps its place in the queue."""
    # Victims aside, the queues lose some and gain none but those that are passed over. Where a
    # prompt is stepped over there is one queue: those whose load has ended still stand in front.
    gone, waiting = {*step.admitted} | _to_the_front(ctx, step), [*step.before.waiting]
    if not _no_stepping_over(ctx.config):
        stays = ids(step.planned.skipped)  # also a request that is refused with its load worked in
        waiting = [*(row for row in step.before.skipped if row.id not in stays), *waiting]
        if ctx.config.scheduling is Scheduling.PRIORITY:
            waiting.sort(key=lambda row: rank(ctx, row))
    kept = [row.id for row in waiting if row.id not in gone]
    now = [row.id for row in step.planned.waiting if row.id not in step.preempted]
    if now != kept:
        yield f"waiting {now}, expected {kept}"


def _to_the_front(ctx: Context, step: Step) -> set[str]:
    """Requests that stand before the waiting ones from now on, because they were passed over.

    Those that begin to load, and up to 0.28.0 those that were looked at and are held back.
    """
    is_moved = not ctx.config.behaviour.holders_first
    return ids(step.happened("load")) | (_passed_over(ctx, step) if is_moved else set())


def in_turn(ctx: Context, rows: Iterable[Sequence]) -> list[Sequence]:
    """These requests, of which those that were passed over come first, as they are looked at.

    By priority the more urgent ones first, up to 0.28.0.
    """
    config = ctx.config
    if config.scheduling is Scheduling.PRIORITY and not config.behaviour.holders_first:
        return sorted(rows, key=lambda row: rank(ctx, row))
    return [*rows]


def _passed_over(ctx: Context, step: Step) -> frozenset[str]:
    """Requests that were looked at, and wait for the connector's answer or for what is in flight.

    They stand before one that was admitted or loads; or what is behind them would have been looked
    at, too, because budget and slots are left.
    """
    held_back = step.before.unanswered | step.before.late
    if not held_back or step.preempted:
        return frozenset()
    queue = in_turn(ctx, step.before.queued)
    has_room = step.budget_left > 0 and places_taken(step.planned) < ctx.config.max_num_seqs
    begun = {*step.admitted} | ids(step.happened("load"))
    passed = step.before.held_back | ids(row for row in queue if row.load is Load.LOADING)
    last = max((place for place, row in enumerate(queue) if row.id in begun), default=-1)
    while has_room and last + 1 < len(queue) and queue[last + 1].id in passed:
        last += 1
    return held_back & ids(queue[: last + 1])


@of_step("V1-ORD-4", text("Token Budget Management"))
@witness(lambda _, step: step.finished and len(step.after.running) > 1)
def computing_changes_no_order(ctx: Context, step: Step) -> Iterator[str]:
    """After a step each queue has the order in which it was when all was decided, without those
    that have left; turns of sessions that begin then stand behind those that were passed over, or,
    sent early, up to 0.28.0 behind those that wait.
    """
    gone = {*step.finished} | step.leavers
    for queue in ("waiting", "skipped", "running"):
        due = [row.id for row in getattr(step.planned, queue) if row.id not in gone]
        due += [turn for turn in next_turns(ctx, step) if _queue_of(ctx, step, turn) == queue]
        now = [row.id for row in getattr(step.after, queue)]
        if now != due:
            yield f"{queue} {now}, expected {due}"


def _queue_of(ctx: Context, step: Step, turn: str) -> str:
    """The queue that a turn joins when the one before ends."""
    waits = turn in step.before.early and not ctx.config.behaviour.holders_first
    return "waiting" if waits else "skipped"


@of_step("V1-ORD-5", code("skipped_waiting"))
@witness(lambda _, step: step.before.skipped and step.happened("load"))
def loads_stand_in_order(ctx: Context, step: Step) -> Iterator[str]:
    """Requests that were passed over and are not admitted stand in the order in which that began;
    by priority, in its order.
    """
    # One that has loaded and is stepped over waits with the others (V1-ORD-3).
    gone, front = {*step.admitted} | ids(step.planned.waiting), _to_the_front(ctx, step)
    kept = [row.id for row in step.before.skipped if row.id not in gone]
    due = [*kept, *(row.id for row in step.before.waiting if row.id in front)]
    if ctx.config.scheduling is Scheduling.PRIORITY:
        rows = by_id(step.before.queued)
        due.sort(key=lambda name: rank(ctx, rows[name]))
    skipped = [row.id for row in step.planned.skipped]
    if skipped != due:
        yield f"load or have loaded {skipped}, expected {due}"


@of_step("V1-ORD-6", code("waiting loop of 0.11.2"), applies=steps_over)
@witness(lambda _, step: step.before.queued and step.admitted == (step.before.queued[-1].id,))
def stepped_over_only_if_cut(ctx: Context, step: Step) -> Iterator[str]:
    """Where a prompt that must not be cut is stepped over, requests are admitted in the order of
    the queue, and none is stepped over that fits the rest of the budget.
    """
    # What it finds in the cache is at least what is cached from the step's start to its decisions.
    if not step.admitted:
        return
    running, admitted = ids(step.before.running), []
    tokens = (count for id_, count in step.scheduled.items() if id_ in running)
    budget = token_limit(ctx.config) - sum(tokens)
    loading = {row.id for row in step.planned.skipped if row.load is Load.LOADING}
    passed_over = loading | step.before.held_back
    for row in in_turn(ctx, step.before.queued):
        if row.id in step.admitted:
            admitted.append(row.id)
            budget -= step.scheduled.get(row.id, 0)
        elif row.id not in passed_over:
            behind = row.tokens - cached_throughout(ctx, step, row)
            if share(ctx, step, behind, budget) == share(ctx, step, behind, behind):
                yield f"{row.id} is stepped over, {behind} tokens behind, {budget} left"
        if admitted == list(step.admitted):
            return
    yield f"admitted {list(step.admitted)}, in the queue's order {admitted}"


@of_step("V1-OUT-1", text("Code Evidence"), witness=lambda _, step: len(step.scheduled) > 1)
def scheduled_are_running(_ctx: Context, step: Step) -> Iterator[str]:
    """What is scheduled is running at the end of the decisions."""
    # Drafts and external tokens belong to scheduled requests only.
    running = by_id(step.planned.running).keys()
    named = {*step.scheduled, *step.admitted}
    if not named <= running or not {*step.drafts, *step.external} <= step.scheduled.keys():
        yield f"scheduled {sorted(named)}, running {sorted(running)}"


@of_step("V1-OUT-2", code("refund of a priority victim"))
@witness(lambda _, step: any(event.id in step.preempted for event in step.happened("catch_up")))
def victims_are_not_scheduled(ctx: Context, step: Step) -> Iterator[str]:
    """A victim appears in no part of what the step hands out."""
    # Neither tokens nor drafts, it is not among the admitted, and has no output but of a step that
    # was in flight before.
    outputs = {} if ctx.config.steps_in_flight else step.outputs
    parts = (step.scheduled, step.drafts, step.external, step.admitted, outputs)
    found = {id_ for part in parts for id_ in part if id_ in step.preempted}
    if found:
        yield f"victims {sorted(found)} are handed out"
