"""Rules of preemption: its reason, the victim, the mode, what is lost and what is kept.

Source: vllm-v0, "Preempting Sequences (`_preempt`)" and "Scheduling Active Sequences".
"""

from collections.abc import Iterable, Iterator

from spec.vllm_v0.config import PreemptionMode, VllmV0Config
from spec.vllm_v0.records import Context, Group, State, Step
from spec.vllm_v0.rules.counting import brought, is_by_priority, rank, written
from spec.vllm_v0.rules.registry import (
    by_id,
    code,
    eventually,
    ids,
    is_documented,
    is_released,
    of_step,
    slot_victims,
    text,
    victims,
    witness,
)

_RUNNING = text("`_schedule_running` - Scheduling Active Sequences")
_DECISION = text("Preempting Sequences (`_preempt`), Decision Logic")
_RECOMPUTE = text("Preempting via Recompute (`_preempt_by_recompute`)")


def _gives_way(_ctx: Context, step: Step) -> bool:
    return bool(slot_victims(step))


def _free(ctx: Context, step: Step) -> int:
    """Blocks that were free when the running requests were looked at.

    Under the default strategy prompts come before them.
    """
    prompts = set[int]() if ctx.config.chunked_prefill else brought(ctx, step)
    return len(step.before.pool.free) - len(prompts)


def _touched(ctx: Context, groups: Iterable[Group]) -> int:
    """Blocks that the groups' new slots lie in."""
    return sum(
        len(written(group, sequence, ctx.config))
        for group in groups
        for sequence in group.unfinished
    )


def _lacking(ctx: Context, state: State, groups: Iterable[Group]) -> int:
    """Blocks that the groups' new slots lack: beyond a table, or to be copied for being shared."""
    return sum(
        place >= len(sequence.blocks) or state.pool.references[sequence.blocks[place]] > 1
        for group in groups
        for sequence in group.unfinished
        for place in written(group, sequence, ctx.config)
    )


def is_not_forced(config: VllmV0Config) -> bool:
    """True where no group is preempted for a test."""
    return config.artificial_preemptions == 0


@of_step("V0-PRE-1", _RUNNING, witness=_gives_way, applies=is_not_forced)
def preempted_without_a_free_slot(ctx: Context, step: Step) -> Iterator[str]:
    """A running request is preempted only if no slots are available for new tokens."""
    # Free blocks against those that all running requests lack.
    lacking, free = _lacking(ctx, step.before, step.before.running), _free(ctx, step)
    if slot_victims(step) and lacking <= free:
        yield f"{sorted(slot_victims(step))} give way, {free} blocks are free, {lacking} lacking"


@of_step("V0-PRE-2", text("`_can_append_slots`"), witness=_gives_way)
def preempted_in_the_worst_case_only(ctx: Context, step: Step) -> Iterator[str]:
    """A running request is preempted only if the free blocks do not suffice where each block that
    is written to needs a new one, or artificially, for testing.
    """
    # An artificial preemption uses up one of those that are left.
    touched, free = _touched(ctx, step.before.running), _free(ctx, step)
    artificial = step.before.artificial - step.after.artificial
    if not 0 <= artificial <= min(len(slot_victims(step)), step.before.artificial):
        yield f"{artificial} artificial preemptions, {sorted(slot_victims(step))} give way"
    if len(slot_victims(step)) > artificial and touched <= free:
        yield f"{sorted(slot_victims(step))} give way, {free} blocks are free, {touched} touched"


@of_step("V0-PRE-3", code("choice of the victim"), witness=lambda _, step: _several(step))
def victims_are_the_last(ctx: Context, step: Step) -> Iterator[str]:
    """Groups that give way for want of slots are the last of the running queue, the last one first;
    under the default strategy by priority it is sorted before.
    """
    # Those that gave way to a more urgent request are gone by then.
    last = ids(_queue(ctx, step))[::-1][: len(slot_victims(step))]
    if {*last} != slot_victims(step):
        yield f"{sorted(slot_victims(step))} give way, last of the queue are {last}"
    for named in (step.preempted, step.swapped_out):
        found = [id_ for id_ in named if id_ in last]
        if found != [id_ for id_ in last if id_ in found]:
            yield f"{found} give way in this order, the queue ends with {last[::-1]}"


def _queue(ctx: Context, step: Step) -> list[Group]:
    """The running queue when slots are looked for: sorted in a step that sorts it."""
    queue = [group for group in step.before.running if group.id not in step.by_priority]
    sorts = is_by_priority(ctx.config) and not ctx.config.chunked_prefill
    if sorts and not (step.admitted and is_released(ctx.config)):
        queue.sort(key=lambda group: rank(ctx, group))
    return queue


def _several(step: Step) -> bool:
    return len(slot_victims(step)) > 1


@of_step(
    "V0-PRE-4",
    text("`_preempt()`"),
    applies=lambda config: is_by_priority(config) and not config.chunked_prefill,
)
@witness(lambda _, step: len(step.before.running) > 1 and victims(step))
def the_least_urgent_give_way(ctx: Context, step: Step) -> Iterator[str]:
    """By priority it is the least urgent of the running requests that are preempted."""
    # None that keeps running is less urgent.
    ranks = {group.id: rank(ctx, group) for group in step.before.running}
    for victim in victims(step):
        kept = [id_ for id_ in ranks.keys() - victims(step) if ranks[id_] > ranks[victim]]
        if kept:
            yield f"{victim} gives way, {sorted(kept)} are less urgent"


@of_step("V0-PRE-5", _DECISION, witness=_gives_way)
def mode_is_as_configured(ctx: Context, step: Step) -> Iterator[str]:
    """A victim is recomputed or swapped out as configured; where that is left open, a single
    sequence is recomputed; several are swapped out in any case.
    """
    # Unless the CPU has no room for it.
    rows, mode = by_id(step.before.running), ctx.config.preemption_mode
    for victim in victims(step):
        has_several = len(rows[victim].unfinished) > 1
        swaps = mode is PreemptionMode.SWAP or has_several
        free = min(len(state.cpu.free) for state in (step.before, step.planned))
        has_no_room = free < len(rows[victim].blocks)
        if swaps != (victim in step.swapped_out) and not (swaps and has_no_room):
            yield f"{victim} is {'not ' * swaps}swapped out, mode {mode}"


@of_step("V0-PRE-6", _DECISION)
@witness(
    lambda _, step: any(
        len(group.unfinished) > 1 and group.id in victims(step) for group in step.before.running
    )
)
def several_sequences_are_swapped_only(_ctx: Context, step: Step) -> Iterator[str]:
    """A group with several sequences is never recomputed: it gives way only by swapping."""
    # Finished ones do not count.
    for group in step.before.running:
        if group.id in step.preempted and len(group.unfinished) > 1:
            yield f"{group.id} has {len(group.unfinished)} sequences and is recomputed"


@of_step("V0-PRE-7", _RECOMPUTE, witness=lambda _, step: step.preempted)
def recomputed_start_over(_ctx: Context, step: Step) -> Iterator[str]:
    """A victim that is to be recomputed loses all that it has computed, keeps what it has sampled,
    and waits as a new prompt.
    """
    # No blocks, nothing remembered of the cache.
    before, waiting = by_id(step.before.running), by_id(step.planned.waiting)
    for group in (waiting[id_] for id_ in step.preempted):
        tokens = [(it.id, it.generated) for it in group.sequences]
        kept = [(it.id, it.generated) for it in before[group.id].sequences]
        lost = (group.computed, group.blocks, group.cached, group.is_prefill) == (0, (), None, True)
        if not lost or tokens != kept:
            yield f"victim {group.id} has {group.computed} computed, {tokens} of {kept} sampled"


@of_step("V0-PRE-8", _RECOMPUTE, witness=lambda _, step: len(step.preempted) > 1)
def victims_wait_in_front(_ctx: Context, step: Step) -> Iterator[str]:
    """Victims that are to be recomputed go back to the front of the waiting queue, in the order in
    which they ran.
    """
    # Those that gave way to a more urgent request are sorted in.
    crowded = [id_ for id_ in reversed(step.preempted) if id_ not in step.by_priority]
    if ids(step.planned.waiting)[: len(crowded)] != crowded:
        yield f"waiting {ids(step.planned.waiting)}, gave way {crowded}"


@of_step("V0-PRE-9", _RUNNING, applies=is_not_forced)
@witness(lambda ctx, step: _gives_way(ctx, step) and step.scheduled)
def no_more_victims_than_needed(ctx: Context, step: Step) -> Iterator[str]:
    """Requests give way until there are enough slots, and no longer: without the last victim the
    blocks would not have sufficed.
    """
    # Those that still run, and the victim itself, in the worst case; blocks that are given back.
    queue = _queue(ctx, step)
    gone = [group for group in queue if group.id in slot_victims(step)]
    if not gone:
        return
    last, others = gone[0], {*ids(gone[1:]), *step.by_priority}
    held = {
        block for group in step.before.running if group.id not in others for block in group.blocks
    }
    given = {b for group in step.before.running for b in group.blocks if group.id in others} - held
    runs = [group for group in queue if group.id not in slot_victims(step) or group is last]
    free = _free(ctx, step) + len(given)
    if _touched(ctx, runs) <= free:
        yield f"{last.id} gives way, {free} blocks are free, {_touched(ctx, runs)} touched"


@of_step(
    "V0-PRE-10", _RUNNING, applies=lambda config: config.chunked_prefill and is_documented(config)
)
@witness(lambda _, step: len(step.before.running) > len(step.scheduled))
def without_budget_is_preempted(_ctx: Context, step: Step) -> Iterator[str]:
    """A running request that cannot be scheduled for want of budget is preempted or swapped out."""
    # What ran has tokens in this step or has given way.
    left_out = {*ids(step.before.running)} - step.scheduled.keys() - victims(step)
    if left_out and not step.after.failure:
        yield f"{sorted(left_out)} are given nothing and keep their blocks"


@eventually("V0-PRE-11", _RECOMPUTE)
@witness(
    lambda _, step: any(
        group.generated for group in step.before.waiting if group.id in step.admitted
    )
)
def preempted_are_served_again(state: State, request_id: str) -> bool:
    """A request that was preempted is served again, or leaves."""
    # Of those that wait only such a one has tokens; unless the engine has ended.
    waits = any(group.generated and group.id == request_id for group in state.waiting)
    return not waits or bool(state.failure)
