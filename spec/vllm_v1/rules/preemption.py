"""Rules of preemption: its reason, the victim, the victim's losses and its place in the queue.

Source: vllm-v1, "Memory Management & Preemption"; what the text leaves open is vLLM 0.28.0's.
"""

from collections.abc import Iterator

from spec.core.judging import ids
from spec.vllm_v1.config import Scheduling, VllmV1Config
from spec.vllm_v1.records import Context, Sequence, Step
from spec.vllm_v1.rules.counting import (
    by_rank,
    held_up,
    is_written,
    positions_due,
    rank,
    token_limit,
)
from spec.vllm_v1.rules.group_counting import lacking_in_groups
from spec.vllm_v1.rules.registry import code, of_step, text, witness

_PREEMPTION = text("Memory Management & Preemption")


def _preempts(_ctx: Context, step: Step) -> bool:
    return bool(step.preempted)


@of_step("V1-PRE-1", _PREEMPTION, witness=_preempts)
def preempted_for_blocks_only(ctx: Context, step: Step) -> Iterator[str]:
    """Requests are preempted only if the running requests' new tokens lack blocks."""
    # Counted with the whole budget for each, and compared with the free blocks that the step found.
    if not step.preempted:
        return
    needed = sum(_new_blocks(ctx, step, row) for row in step.before.running)
    if needed <= len(step.before.pool.free):
        yield f"preempted {list(step.preempted)}, {needed} blocks needed"


def _new_blocks(ctx: Context, step: Step, row: Sequence) -> int:
    due = positions_due(ctx, step, row, token_limit(ctx.config))
    return lacking_in_groups(ctx, row, due)


@of_step("V1-PRE-2", code("choice of the victim"), witness=lambda _, step: len(step.preempted) > 1)
def victims_by_policy(ctx: Context, step: Step) -> Iterator[str]:
    """The victim is the last of the running queue; by priority, the worst by priority and
    arrival.
    """
    # One after the other, out of those that still run.
    expected = tuple(row.id for row in reversed(by_rank(ctx, step.before.running)))
    expected = expected[: len(step.preempted)]
    if step.preempted != expected:
        yield f"preempted {list(step.preempted)}, expected {list(expected)}"


def _spares(config: VllmV1Config) -> bool:
    return config.behaviour.spares_in_flight and config.frees_late


@of_step("V1-PRE-6", code("choice of the victim"), applies=_spares)
@witness(lambda ctx, step: held_up(ctx, step))
def none_is_preempted_in_vain(ctx: Context, step: Step) -> Iterator[str]:
    """In 0.33.0 no request is preempted whose blocks would be free only once the results of a step
    in flight have come.
    """
    # The request that lacks blocks waits for them, and those behind it (V1-BUD-3).
    written = [id_ for id_ in step.preempted if is_written(ctx, step.before, id_)]
    if written:
        yield f"{written} are preempted, steps in flight write to their blocks"


@of_step("V1-PRE-3", _PREEMPTION, witness=_preempts)
def victims_start_over(ctx: Context, step: Step) -> Iterator[str]:
    """A victim loses all progress but its tokens, and waits in front: the last victim first, by
    priority where there is one.
    """
    # Nothing computed, no block, no draft, nothing awaited.
    if not step.preempted:
        return
    before = {row.id: row.generated for row in step.before.running}
    waiting = step.planned.waiting
    first = [row.id for row in waiting[: len(step.preempted)]]
    if ctx.config.scheduling is Scheduling.FCFS and first != list(reversed(step.preempted)):
        yield f"waiting {first}, preempted {list(step.preempted)}"
    for place, row in enumerate(waiting):
        if ctx.config.scheduling is Scheduling.PRIORITY and row.id in step.preempted:
            near = [*waiting[max(place - 1, 0) : place + 2]]
            if near != sorted(near, key=lambda row: rank(ctx, row)):
                yield f"victim {row.id} waits out of order"
        kept = (row.computed, row.blocks, row.drafts, row.placeholders, row.generated)
        if row.id in step.preempted and kept != (0, (), 0, 0, before[row.id]):
            yield f"victim {row.id} has {kept}"


@of_step("V1-PRE-7", code("count of preemptions"))
@witness(lambda _, step: any(id_ in step.before.preempted for id_ in step.admitted))
def victims_stay_preempted_until_they_run(_ctx: Context, step: Step) -> Iterator[str]:
    """A victim counts as preempted until it is admitted again, or leaves."""
    # Also while it loads.
    planned, after = step.planned.preempted, step.after.preempted
    due = step.before.preempted.union(step.preempted).difference(step.admitted)
    if planned != due or after != due & ids(step.after.present):
        yield f"preempted {sorted(planned)}, then {sorted(after)}, expected {sorted(due)}"


@of_step("V1-PRE-4", code("waiting loop"))
@witness(lambda _, step: step.preempted and step.before.queued)
def no_admission_after_preemption(_ctx: Context, step: Step) -> Iterator[str]:
    """After a preemption no waiting request is looked at in that step; none ever causes one."""
    # Neither admitted nor loaded nor promoted.
    looked_at = step.happened("admit", "load", "promote")
    if step.preempted and looked_at:
        yield f"preempted {list(step.preempted)}, then {looked_at[0].transition}"
