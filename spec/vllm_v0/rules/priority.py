"""Rules of priorities: order of the queues, what gives way to what, what the text denies.

Source: vllm-v0, "Handling High-Priority Requests"; `rank` is urgency, then arrival.
"""

from collections.abc import Iterator

from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.records import Context, Group, Step
from spec.vllm_v0.rules.counting import (
    Room,
    fits,
    is_by_priority,
    is_passed_over,
    looked_at,
    rank,
    token_limit,
    will_have,
)
from spec.vllm_v0.rules.registry import (
    by_id,
    code,
    ids,
    is_documented,
    of_step,
    slot_victims,
    text,
    victims,
    witness,
)

_PRIORITY = text("`_schedule_priority_preemption` - Handling High-Priority Requests")
_NEEDED = text("`_schedule_priority_preemption`, Why It's Needed")


def _by_default(config: VllmV0Config) -> bool:
    return is_by_priority(config) and not config.chunked_prefill


def _front(ctx: Context, step: Step) -> Group | None:
    """The most urgent waiting request."""
    return next(iter(looked_at(ctx, step)), None)


def _remaining_room(ctx: Context, step: Step, gone: set[str]) -> Room:
    """The room before any decode if only these running requests were preempted."""
    kept = [group for group in step.before.running if group.id not in gone]
    held = {block for group in kept for block in group.blocks}
    given = {b for group in step.before.running for b in group.blocks if group.id in gone} - held
    seqs = ctx.config.max_num_seqs - sum(will_have(ctx, group) for group in kept)
    return Room(len(step.before.pool.free) + len(given), token_limit(ctx.config), seqs)


@of_step("V0-PRI-1", _PRIORITY, applies=_by_default)
@witness(lambda _, step: len(step.before.running) > 1 and len(step.planned.waiting) > 1)
def queues_are_sorted(ctx: Context, step: Step) -> Iterator[str]:
    """A step without new prompts sorts both queues by priority, and equal ones by arrival."""
    # Groups that then give way for want of slots go to the front, swapped ones come back behind.
    if step.admitted or step.after.failure:
        return
    before, waiting = by_id(step.before.running), list(step.planned.waiting)
    scheduled = (group for group in step.planned.running if group.id in step.scheduled)
    running = [group for group in scheduled if group.id in before]
    waiting = [group for group in waiting if group.id not in slot_victims(step)]
    for queue in (running, waiting):
        if queue != sorted(queue, key=lambda group: rank(ctx, group)):
            yield f"out of order: {[(group.id, *rank(ctx, group)) for group in queue]}"


def _gives_way(_ctx: Context, step: Step) -> bool:
    return bool(step.by_priority)


@of_step("V0-PRI-2", _PRIORITY, witness=_gives_way, applies=is_by_priority)
def only_the_less_urgent_give_way(ctx: Context, step: Step) -> Iterator[str]:
    """Only requests of lower priority than the one that does not fit are preempted for it, the
    lowest first.
    """
    # It stands in front of the waiting queue.
    rows = by_id(step.before.running)
    if not step.by_priority:
        return
    order = sorted(rows.values(), key=lambda group: rank(ctx, group), reverse=True)
    if list(step.by_priority) != ids(order)[: len(step.by_priority)]:
        yield f"{list(step.by_priority)} give way, least urgent are {ids(order)}"
    front, least = _front(ctx, step), rows[step.by_priority[-1]]
    if front is None or rank(ctx, front) > rank(ctx, least):
        yield f"{least.id} gives way to {'none' if front is None else front.id}"


@of_step("V0-PRI-3", _PRIORITY, witness=_gives_way, applies=is_by_priority)
def no_more_give_way_than_needed(ctx: Context, step: Step) -> Iterator[str]:
    """Requests are preempted for a more urgent one only if it does not fit otherwise."""
    # What there would be if the last of them still ran.
    if not step.by_priority:
        return
    last, room = step.by_priority[-1], _remaining_room(ctx, step, {*step.by_priority[:-1]})
    front = _front(ctx, step)
    if front is not None and fits(ctx, front, room):
        yield f"{last} gives way to {front.id}, which fits {room}"


@of_step("V0-PRI-4", _PRIORITY, applies=_by_default)
@witness(lambda _, step: len(step.before.waiting) > 1 and step.by_priority)
def room_is_made_for_the_most_urgent(ctx: Context, step: Step) -> Iterator[str]:
    """Where the most urgent waiting request does not fit, no less urgent one keeps running in a
    step without new prompts.
    """
    # Unless enough of them have given way.
    waiting = looked_at(ctx, step)
    if step.admitted or step.after.failure or not waiting:
        return
    most = min(waiting, key=lambda group: rank(ctx, group))
    kept = [group for group in step.before.running if group.id not in step.by_priority]
    below = [group.id for group in kept if rank(ctx, group) > rank(ctx, most)]
    room = _remaining_room(ctx, step, {*step.by_priority})
    if below and not fits(ctx, most, room):
        yield f"{most.id} does not fit {room}, {below} run"


@of_step(
    "V0-PRI-5", _NEEDED, applies=lambda config: is_by_priority(config) and is_documented(config)
)
@witness(lambda _, step: step.scheduled and step.planned.waiting)
def no_priority_inversion(ctx: Context, step: Step) -> Iterator[str]:
    """No request is scheduled while a more urgent one waits: a low priority never blocks a higher
    one.
    """
    # Whatever the step found waiting, and did not ignore.
    rows = by_id(step.planned.running)
    waiting = [group for group in step.planned.waiting if group.id not in step.preempted]
    for group in waiting:
        below = [it for it in step.scheduled if rank(ctx, rows[it]) > rank(ctx, group)]
        if below:
            yield f"{group.id} waits, {below} are scheduled"


@of_step("V0-PRI-6", _PRIORITY, witness=_gives_way, applies=is_by_priority)
def what_gave_way_waits(_ctx: Context, step: Step) -> Iterator[str]:
    """A request that gave way to a more urgent one is moved back to the waiting queue, or to the
    swapped one with its blocks.
    """
    # A swapped one among the waiting would have no blocks to start from.
    moved = {*ids(step.planned.waiting)} - {*step.swapped_out}
    moved |= {*ids(step.planned.swapped)} & {*step.swapped_out} | {*step.ignored}
    elsewhere = {*step.by_priority} - moved
    if elsewhere:
        yield f"{sorted(elsewhere)} do not wait"


@of_step("V0-PRI-7", code("_schedule_default"), witness=_gives_way)
def priority_preempts_by_default_only(ctx: Context, step: Step) -> Iterator[str]:
    """Only by priority, under the default strategy and in a step without new prompts does a request
    give way to a more urgent one.
    """
    # And what does is a victim.
    if step.by_priority and (not _by_default(ctx.config) or step.admitted):
        yield f"{list(step.by_priority)} give way, admitted {list(step.admitted)}"
    if not {*step.by_priority} <= victims(step):
        yield f"{list(step.by_priority)} give way, victims {sorted(victims(step))}"


@of_step("V0-PRI-8", _PRIORITY, applies=_by_default)
@witness(lambda _, step: step.admitted and step.planned.waiting)
def urgent_are_admitted_first(ctx: Context, step: Step) -> Iterator[str]:
    """More urgent requests are scheduled before less urgent ones, even if they arrive later."""
    # Of those waiting at the same time; an adapter may keep one back. Where small ones pass a long
    # one, as the text says elsewhere (V0-PRG-5), this falls.
    rows = by_id(step.planned.running)
    least = max((rank(ctx, rows[id_]) for id_ in step.admitted), default=None)
    left = [group for group in looked_at(ctx, step) if group.id not in step.admitted]
    left = [group for group in left if not is_passed_over(ctx, step, group)]
    passed = [group.id for group in left if least is not None and rank(ctx, group) < least]
    if passed:
        yield f"{list(step.admitted)} are admitted, {passed} are more urgent"
