"""Rules of a group's life: one place, one end, and what it holds in each queue.

Source: vllm-v0, "Handling Aborted Sequences", "Freeing Sequences" and "What the Scheduler Does".
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise

from attrs import evolve

from spec.core import judging
from spec.core.words import changes
from spec.vllm_v0.records import Context, Group, Sequence, State, Step
from spec.vllm_v0.rules.counting import is_by_priority
from spec.vllm_v0.rules.memory import blank, device_tables, pushed, wrong_ranks
from spec.vllm_v0.rules.registry import always, between, by_id, ids, of_step, text, witness

_STATES = text("Managing Different Sequence States")
_ABORT = text("Handling Aborted Sequences")


@always("V0-LIF-1", _STATES, witness=lambda _, step: len(step.after.present) > 1)
def one_place_each(_ctx: Context, state: State) -> Iterator[str]:
    """A request is in exactly one place: waiting, running, swapped, or gone."""
    # The ignored are among the finished.
    yield from judging.one_place_each(state)
    if not state.ignored <= state.finished:
        yield f"ignored and not gone: {sorted(state.ignored - state.finished)}"


@of_step("V0-LIF-2", _STATES, witness=lambda _, step: step.finished and step.after.present)
def no_request_is_lost(_ctx: Context, step: Step) -> Iterator[str]:
    """No step loses or invents a request between the queues; what is gone stays gone."""
    # A request that was there is there, has finished, or is ignored.
    before = Counter(ids(step.before.present))
    after = Counter(ids(step.after.present)) + Counter({*step.finished, *step.ignored})
    if before != after:
        yield f"before {sorted(before)}, after {sorted(after)}"
    known, now = step.before, step.after
    ended, ignored = {*step.finished, *step.ignored}, known.ignored.union(step.ignored)
    due = known.finished | ended, known.aborted, ignored
    if (now.finished, now.aborted, now.ignored) != due:
        yield f"finished, aborted and ignored {due} are {now.finished, now.aborted, now.ignored}"


@between("V0-LIF-3", _STATES, witness=lambda _, step: step.before.aborted)
def others_are_untouched(ctx: Context, before: State, after: State) -> Iterator[str]:
    """Between two steps requests only arrive, new and at the end of the waiting queue, and go away
    with the blocks that they held: nothing else changes.
    """
    # Those that stay are as they were; those gone are among the aborted. An abort may end the
    # engine, see V0-PRG-1.
    known, aborted = {*ids(before.present)}, after.aborted - before.aborted
    gone = known - {*ids(after.present)}
    if gone != aborted & known or after.finished != before.finished:
        yield f"gone are {sorted(gone)}"
    for name in ("running", "swapped"):
        stayed = [_known(group) for group in getattr(before, name) if group.id not in gone]
        if [_known(group) for group in getattr(after, name)] != stayed:
            yield f"{name} {ids(getattr(after, name))}, before {ids(getattr(before, name))}"
    waiting = [_known(group) for group in before.waiting if group.id not in gone]
    if [_known(group) for group in after.waiting][: len(waiting)] != waiting:
        yield f"waiting {ids(after.waiting)}, before {ids(before.waiting)}"
    for group in after.waiting[len(waiting) :]:
        new = Group(group.id, ctx.requests[group.id].prompt_len, (Sequence(group.id),))
        if _known(group) != new or group.mark or group.id in before.finished | before.aborted:
            yield f"newcomer {group}"
    yield from _arrivals(ctx, before, after)
    left = [group for group in before.present if group.id in gone]
    yield from _memory_between(ctx, before, after, left)


def _arrivals(ctx: Context, before: State, after: State) -> Iterator[str]:
    """How the order of arrival is wrong: the present keep theirs, newcomers are behind them."""
    old = {group.id: group.arrival for group in before.present}
    order = sorted(after.present, key=lambda group: old.get(group.id, len(old) + group.arrival))
    numbers = [group.arrival for group in order]
    are_in_order = all(earlier < later for earlier, later in pairwise(numbers))
    if not are_in_order if is_by_priority(ctx.config) else any(numbers):
        yield f"arrived {[(group.id, group.arrival) for group in order]}"


_KEPT = ("ignored", "computed", "artificial", "has_prefilled")


def _memory_between(ctx: Context, before: State, after: State, gone: list[Group]) -> Iterator[str]:
    """What changed between two steps beside the requests, but for the blocks of those gone."""
    if others := [name for name in _KEPT if getattr(before, name) != getattr(after, name)]:
        yield f"{', '.join(others)} changed"
    for old, new, on_cpu in ((before.pool, after.pool, False), (before.cpu, after.cpu, True)):
        if (old.size, old.keys, old.cached) != (new.size, new.keys, new.cached):
            yield "contents of blocks changed"
        left = [device_tables(group, ctx.config, on_cpu=on_cpu) for group in gone]
        was, now = blank(old), blank(new)
        freed = pushed(old, chain.from_iterable(left))
        due = [*reversed([block for block in freed if block not in old.keys]), *was]
        # Where several go at once their order is not known.
        if now != due if len(gone) < 2 else now[len(now) - len(was) :] != was:
            yield f"free {now}, expected {due}"
    if len(gone) < 2 and not after.failure:
        given = {
            block: group.mark for group in gone if not group.is_swapped for block in group.blocks
        }
        known = {**before.marks, **given}
        marks = {block: mark for block, mark in known.items() if block in after.pool.keys}
        stay = {group.id: group.mark for group in before.present}
        groups = {group.id: stay.get(group.id, 0) for group in after.present}
        yield from wrong_ranks(after, groups, marks)


def _known(group: Group) -> Group:
    """Without the ranks, which are relative to others."""
    return evolve(group, mark=0, arrival=0)


@of_step("V0-LIF-4", text("Freeing Finished Sequences (`_free_finished_seqs`)"))
@witness(lambda _, step: step.finished and step.after.running)
def finishes_once(ctx: Context, step: Step) -> Iterator[str]:
    """A sequence ends with all its tokens, a group with the last of its sequences, and once."""
    # With max_tokens tokens, or when it samples the end of sequence.
    if {*step.finished, *step.ignored} != step.after.finished - step.before.finished:
        yield f"reported {[*step.finished, *step.ignored]}"
    rows, after = by_id(step.planned.running), by_id(step.after.present)
    for group in rows.values():
        names = [sequence.id for sequence in group.unfinished]
        names += [child for child, parent in step.forked.items() if parent in names]
        generated = {sequence.id: sequence.generated for sequence in group.sequences}
        over = [name for name in names if _is_over(ctx, step, name, generated.get(name, 0))]
        if (group.id in step.finished) != (len(over) == len(names)):
            yield f"{group.id}: {over} of {names} have all their tokens"
        for sequence in after[group.id].sequences if group.id in after else ():
            count = generated.get(sequence.id, 0) + len(step.sampled.get(sequence.id, ()))
            if sequence.generated != count or (
                sequence.id in names and sequence.is_finished != (sequence.id in over)
            ):
                yield f"{sequence.id} has {sequence.generated} tokens, sampled {count}"


def _is_over(ctx: Context, step: Step, sequence: str, generated: int) -> bool:
    count = generated + len(step.sampled.get(sequence, ()))
    request = ctx.sequences[sequence]
    return count >= request.max_tokens or (
        sequence in step.sampled and (sequence in step.ended or count == request.end)
    )


@between("V0-LIF-5", _ABORT, witness=lambda _, step: step.before.aborted)
def aborted_hold_nothing(_ctx: Context, before: State, after: State) -> Iterator[str]:
    """A request whose client goes away holds nothing any more, whatever queue it was in and
    however many sequences it had.
    """
    # Its blocks are free, unless others hold them.
    stays = {*ids(after.present)}
    for pool, groups in (
        (after.pool, (*before.waiting, *before.running)),
        (after.cpu, before.swapped),
    ):
        held = _blocks(group for group in groups if group.id in stays)
        kept = _blocks(group for group in groups if group.id not in stays) - held - {*pool.free}
        if kept:
            yield f"blocks {sorted(kept)} of aborted groups are not free"


def _blocks(groups: Iterable[Group]) -> set[int]:
    return {block for group in groups for block in group.blocks}


@always("V0-LIF-6", _STATES, witness=lambda _, step: step.after.waiting and step.after.swapped)
def queues_hold_what_they_say(_ctx: Context, state: State) -> Iterator[str]:
    """A waiting group has no blocks and nothing computed, a running one has blocks on the GPU, a
    swapped one on the CPU.
    """
    # Each unfinished sequence of a group that has begun has a table.
    for group in state.waiting:
        if group.blocks or group.computed or group.is_swapped:
            yield f"{group.id} waits with {len(group.blocks)} blocks, {group.computed} tokens"
    for queue, on_cpu in ((state.running, False), (state.swapped, True)):
        for group in queue:
            has_tables = all(sequence.blocks for sequence in group.unfinished)
            if group.is_swapped != on_cpu or not has_tables:
                yield f"{group.id} is on the {'CPU' if group.is_swapped else 'GPU'}"


@always("V0-LIF-7", text("Freeing Finished Sequences (`_free_finished_seqs`)"))
@witness(
    lambda _, step: any(
        sequence.is_finished for group in step.after.running for sequence in group.sequences
    )
)
def finished_sequences_hold_nothing(_ctx: Context, state: State) -> Iterator[str]:
    """Sequences that have finished hold no blocks while the others of their group go on."""
    # A group stays as long as one of its sequences is unfinished.
    for group in state.present:
        if not group.unfinished:
            yield f"{group.id} stays with all its sequences finished"
        for sequence in group.sequences:
            if sequence.is_finished and sequence.blocks:
                yield f"{sequence.id} has finished and holds {list(sequence.blocks)}"


@of_step("V0-LIF-8", text("Update state queues, merge scheduling outputs"))
@witness(lambda _, step: step.admitted and step.scheduled.keys() - {*step.admitted})
def decisions_are_between_the_right_queues(_ctx: Context, step: Step) -> Iterator[str]:
    """What a step says it did to a group is what the queues show: it was admitted from waiting,
    swapped in from swapped, preempted or swapped out from running, and what is scheduled runs.
    """
    # From queue to queue, by name.
    before, planned = step.before, step.planned
    for what, named, source, target in (
        ("admitted", step.admitted, before.waiting, planned.running),
        ("swapped in", step.swapped_in, before.swapped, planned.running),
        ("preempted", step.preempted, before.running, planned.waiting),
        ("swapped out", step.swapped_out, before.running, (*planned.swapped, *planned.waiting)),
    ):
        came = {*ids(source)} & {*ids(target)}
        if not {*named} <= came:
            yield f"{what} {list(named)}, queues say {sorted(came)}"
    running = {*step.admitted, *step.swapped_in, *ids(before.running)}
    gone = {*step.preempted, *step.swapped_out, *step.ignored}
    if {*ids(planned.running)} != running - gone:
        yield f"running {ids(planned.running)}, expected {sorted(running - gone)}"
    if not {*step.prefills, *step.sampling} <= step.scheduled.keys() <= {*ids(planned.running)}:
        yield f"scheduled {list(step.scheduled)}, running {ids(planned.running)}"
    prompts = {group.id for group in planned.running if group.is_prefill} & step.scheduled.keys()
    if {*step.prefills} != prompts:
        yield f"prefills {list(step.prefills)}, computing prompts {sorted(prompts)}"


def _still(group: Group) -> Group:
    """Without ranks and waits, and without what lookups remember, see V0-SWP-16."""
    is_swapped = group.is_swapped
    return evolve(
        group,
        mark=0,
        waited=0.0,
        is_forgotten=False,
        cached=None if is_swapped else group.cached,
    )


@of_step("V0-LIF-9", _STATES)
@witness(lambda _, step: len(step.scheduled) < len(step.before.present))
def what_is_left_alone_stays(_ctx: Context, step: Step) -> Iterator[str]:
    """A step changes no request that it does not schedule, preempt, swap or end; no request ever
    changes its prompt, its place in the order of arrival or, while it runs, its encoder's blocks.
    """
    # What is decided of one that is not scheduled is all that happens to it.
    if step.after.failure:
        return
    moved = {*step.admitted, *step.preempted, *step.swapped_out, *step.swapped_in, *step.ignored}
    before, planned = by_id(step.before.present), by_id(step.planned.present)
    for known, state, touched in (
        (before, step.planned, moved | step.scheduled.keys()),
        (planned, step.after, step.scheduled.keys()),
    ):
        for group in state.present:
            was = known.get(group.id, group)
            kept = (group.prompt_len, group.arrival), (was.prompt_len, was.arrival)
            cross = group.cross == was.cross or (group.id in moved and state is step.planned)
            if kept[0] != kept[1] or not cross:
                yield f"{group.id}: {changes(was, group)}"
            if group.id not in touched and _still(group) != _still(was):
                yield f"{group.id} was left alone: {changes(was, group)}"
