"""Rules of the queues and of what a step hands out.

Source: vllm-v1, "Token Budget Management" and "Memory Management & Preemption".
"""

from collections.abc import Iterator
from heapq import nsmallest

from spec.core.changes import change_between
from spec.vllm_v1.config import Release, Scheduling, VllmV1Config
from spec.vllm_v1.records import Context, Load, Sequence, Step
from spec.vllm_v1.rules.registry import by_id, code, of_step, text, witness


def rank(ctx: Context, one: Sequence) -> tuple[int, int]:
    """Priority, then arrival: the lowest is served first."""
    return ctx.requests[one.id].priority, one.arrival


@of_step("V1-ORD-1", text("Token Budget Management"))
@witness(lambda _, step: step.before.running and step.admitted)
def running_go_first(_ctx: Context, step: Step) -> Iterator[str]:
    """Running requests go first and keep their order; those admitted stand behind them."""
    # The tokens are handed out in the order of the running queue.
    kept = [one.id for one in step.before.running if one.id not in step.preempted]
    queue = [one.id for one in step.planned.running]
    if queue != [*kept, *step.admitted]:
        yield f"running {queue}, were {kept}, admitted {list(step.admitted)}"
    turns = [one for one in queue if one in step.scheduled]
    if turns != list(step.scheduled):
        yield f"scheduled {list(step.scheduled)}, running {queue}"


def _no_stepping_over(config: VllmV1Config) -> bool:
    return config.chunked_prefill or config.release is Release.V0_28_0


@of_step("V1-ORD-2", code("waiting loop"), applies=_no_stepping_over)
@witness(lambda _, step: len(step.before.queued) > 1 and step.admitted)
def queue_is_not_overtaken(ctx: Context, step: Step) -> Iterator[str]:
    """Requests are admitted in the order of the queue; only one that loads is passed over."""
    # All that stood before the last that was admitted are admitted too, or load.
    if not step.admitted:
        return
    loading = {one.id for one in step.planned.skipped if one.load is Load.LOADING}
    count, queue = len(step.admitted) + len(loading), step.before.queued
    if ctx.config.scheduling is Scheduling.PRIORITY:
        queue = tuple(nsmallest(count, queue, key=lambda one: rank(ctx, one)))
    could = [one.id for one in queue[:count] if one.id not in loading]
    if could[: len(step.admitted)] != list(step.admitted):
        yield f"admitted {list(step.admitted)}, queue {could}"


@of_step("V1-ORD-3", code("waiting loop"))
@witness(lambda _, step: step.planned.waiting and step.admitted)
def queue_keeps_its_order(ctx: Context, step: Step) -> Iterator[str]:
    """A request that is not admitted keeps its place in the queue."""
    # Victims aside, the queues lose some and gain none but those that begin to load. Where requests
    # are stepped over there is one queue: those whose load has ended still stand in front of it.
    gone = {*step.admitted, *(event.id for event in step.happened("load"))}
    lost, gained = change_between(step.before, step.planned).queue
    if not _no_stepping_over(ctx.config):
        stays = by_id(step.planned.skipped)  # also what is refused with its load worked in
        lost = (*(one for one in step.before.skipped if one.id not in stays), *lost)
        if ctx.config.scheduling is Scheduling.PRIORITY:
            lost = tuple(sorted(lost, key=lambda one: rank(ctx, one)))
    kept = [one.id for one in lost if one.id not in gone]
    now = [one.id for one in gained if one.id not in step.preempted]
    if now != kept:
        yield f"waiting {now}, expected {kept}"


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
def victims_are_not_scheduled(_ctx: Context, step: Step) -> Iterator[str]:
    """A victim appears in no part of what the step hands out."""
    # Neither tokens nor drafts nor an output, and it is not among the admitted.
    parts = (step.scheduled, step.drafts, step.external, step.admitted, step.outputs)
    found = {one for part in parts for one in part if one in step.preempted}
    if found:
        yield f"victims {sorted(found)} are handed out"
