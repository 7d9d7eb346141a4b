"""Transitions of a group: a short pure function each, guard first, then effect.

Between steps `arrive` and `abort` change the state; within a step the decisions do, then what is
computed: sequences sample, fork and finish. Source: vllm-v0, the sections named at each function.

Each raises GuardError, with the rule that its guard stands for, where the guard does not hold, and
EngineEnds where the release dies.
"""

from collections.abc import Container, Mapping
from typing import TypeAlias

from attrs import evolve

from reference.core import run
from reference.core.frozen_map import FrozenMap
from reference.core.guards import require, require_among, require_new
from reference.vllm_v0 import block_manager, swapping
from reference.vllm_v0.block_manager import EngineEnds
from spec.core.records import Event
from spec.vllm_v0.config import Scheduling
from spec.vllm_v0.records import Context, Group, Pairs, Sequence, State

Queue: TypeAlias = tuple[Group, ...]
Moved: TypeAlias = run.Moved[State]
Copied: TypeAlias = tuple[State, Pairs, tuple[Event, ...]]  # with the blocks that are copied


# --- queues ---------------------------------------------------------------------------------------


def rank(ctx: Context, group: Group) -> tuple[int, int]:
    """Priority, then arrival: the lowest is served first ("Handling High-Priority Requests")."""
    priority = ctx.requests[group.id].priority
    return -priority if ctx.config.choices.higher_number_first else priority, group.arrival


def without(state: State, request_id: str) -> State:
    """The state without the group in any queue."""

    def others(queue: Queue) -> Queue:
        return tuple(group for group in queue if group.id != request_id)

    return evolve(
        state,
        waiting=others(state.waiting),
        running=others(state.running),
        swapped=others(state.swapped),
    )


def changed(state: State, group: Group) -> State:
    """The state with `group` in the place of the running one of its name."""
    return evolve(
        state, running=tuple(group if other.id == group.id else other for other in state.running)
    )


def compressed(ctx: Context, state: State) -> State:
    """The same order of last uses in the smallest numbers, so that states repeat."""
    if not ctx.config.prefix_caching:
        return state
    known = sorted({0, *state.marks.values(), *(group.mark for group in state.present)})
    ranks = {mark: index for index, mark in enumerate(known)}

    def ranked(queue: tuple[Group, ...]) -> tuple[Group, ...]:
        return tuple(evolve(group, mark=ranks[group.mark]) for group in queue)

    return evolve(
        state,
        marks=FrozenMap({block: ranks[mark] for block, mark in state.marks.items()}),
        waiting=ranked(state.waiting),
        running=ranked(state.running),
        swapped=ranked(state.swapped),
    )


# --- between two steps ----------------------------------------------------------------------------


def arrive(ctx: Context, state: State, request_id: str) -> State:
    """A client hands in a request: a group of one sequence joins the end of the waiting queue."""
    # guard
    require_new(state, request_id, "V0-LIF-1")
    # effect
    by_priority = ctx.config.scheduling is Scheduling.PRIORITY
    earlier = len(state.present) + len(state.finished) + len(state.aborted)
    newcomer = Group(
        request_id,
        prompt_len=ctx.requests[request_id].prompt_len,
        sequences=(Sequence(request_id),),
        arrival=earlier if by_priority else 0,
    )
    return evolve(state, waiting=(*state.waiting, newcomer))


def abort(ctx: Context, state: State, request_id: str) -> State:
    """A client goes away: its group leaves any queue and gives everything back."""
    # guard
    leaver = require_among(state.present, request_id, "abort", "V0-LIF-3")
    # effect
    try:
        freed, _ = block_manager.free(ctx, state, leaver, leaver.unfinished)
    except EngineEnds as end:
        return evolve(state, failure=end.reason)
    left = evolve(without(freed, request_id), aborted=state.aborted | {request_id})
    return compressed(ctx, left)


# --- decisions ------------------------------------------------------------------------------------


def admit(ctx: Context, state: State, group: Group, tokens: int) -> Moved:
    """A waiting group gets its blocks and runs ("Allocating and Running Sequences")."""
    # guard
    require(group.id in {queued.id for queued in state.waiting}, "admit", "V0-LIF-8")
    if group.is_swapped:
        raise EngineEnds("a waiting group has no waiting sequence")
    # effect
    allocated, running = block_manager.allocate(ctx, state, group)
    after = without(allocated, group.id)
    event = Event("admit", group.id, "V0-ADM-1", after=tokens)
    return evolve(after, running=(*after.running, running)), (event,)


def append(ctx: Context, state: State, place: int, lookahead: int) -> Copied:
    """The running group at a place of its queue gets slots for its unseen tokens.

    Source: "Appending Memory Slots"; blocks that it shares are copied before it writes to them.
    """
    # guard
    require(0 <= place < len(state.running), "append", "V0-LIF-8")
    # effect
    group = state.running[place]
    after, grown, copies = block_manager.append_slots(ctx, state, group, lookahead)
    held, holds = (sum(len(sequence.blocks) for sequence in it.sequences) for it in (group, grown))
    events = [Event("append", group.id, "V0-LKA-1", held, holds)] if holds > held else []
    events += [Event("copy", group.id, "V0-SEQ-4", source, target) for source, target in copies]
    running = (*state.running[:place], grown, *state.running[place + 1 :])
    return evolve(after, running=running), copies, tuple(events)


def recompute(ctx: Context, state: State, group: Group) -> Moved:
    """A running group loses its progress and its blocks, and waits again.

    Source: "Preempting via Recompute"; its place in the waiting queue is the step's to say.
    """
    # guard
    require(group in state.running, "preempt", "V0-LIF-8")
    require(len(group.unfinished) == 1, "preempt", "V0-PRE-6")
    # effect
    freed, left = block_manager.free(ctx, state, group, group.unfinished)
    fresh = evolve(left, computed=0, is_prefill=True, cached=None, mark=0)
    after = without(freed, group.id)
    event = Event("preempt", group.id, "V0-PRE-2", group.computed, 0)
    return evolve(after, waiting=(fresh, *after.waiting)), (event,)


def swap_out(ctx: Context, state: State, group: Group) -> Copied:
    """A running group's blocks go to the CPU ("Swapping Out a Sequence")."""
    # guard
    require(group in state.running, "swap_out", "V0-LIF-8")
    require(swapping.can_swap_out(ctx, state, group), "swap_out", "V0-PRE-5")
    # effect
    moved, out, pairs = swapping.swap_out(ctx, state, group)
    after = without(moved, group.id)
    event = Event("swap_out", group.id, "V0-PRE-5", after=len(pairs))
    return evolve(after, swapped=(*after.swapped, out)), pairs, (event,)


def swap_in(ctx: Context, state: State, group: Group) -> Copied:
    """A swapped group's blocks come back to the GPU and it runs ("Swapping In a Sequence")."""
    # guard
    require(group in state.swapped, "swap_in", "V0-LIF-8")
    # effect
    moved, back, pairs = swapping.swap_in(ctx, state, group)
    after, back = without(moved, group.id), evolve(back, is_forgotten=False)
    event = Event("swap_in", group.id, "V0-SWP-6", after=len(pairs))
    return evolve(after, running=(*after.running, back)), pairs, (event,)


def forget(_ctx: Context, state: State, group: Group) -> Moved:
    """The release drops what lookups remember of a swapped group that finds no budget.

    Raises:
        EngineEnds: there is nothing of one of its sequences: it was dropped before, or the sequence
            was forked and has not been scheduled since.
    """
    # guard
    require(group in state.swapped, "forget", "V0-SWP-6")
    forks = any(
        sequence.id != group.id and sequence.generated == 1 for sequence in group.unfinished
    )
    if group.is_forgotten or forks:
        raise EngineEnds("what lookups remember of a swapped group is dropped twice")
    # effect
    # A prompt is looked up again; what decodes is not, before it is scheduled.
    dropped = evolve(group, cached=None, is_forgotten=not group.is_prefill)
    swapped = tuple(dropped if other.id == group.id else other for other in state.swapped)
    return evolve(state, swapped=swapped), ()


def ignore(ctx: Context, state: State, group: Group, rule: str, frees: bool = True) -> Moved:
    """A group that can never be served leaves and is reported ("very long prompts")."""
    # guard
    require(group in state.present, "ignore", "V0-ADM-3")
    # effect
    freed = block_manager.free(ctx, state, group, group.unfinished)[0] if frees else state
    after = without(freed, group.id)
    after = evolve(after, finished=state.finished | {group.id}, ignored=state.ignored | {group.id})
    return after, (Event("ignore", group.id, rule),)


# --- results --------------------------------------------------------------------------------------


def compute(_ctx: Context, state: State, tokens: Mapping[str, int]) -> Moved:
    """Tokens of each sequence of the scheduled groups are in the cache now.

    With all tokens of a group its prefill is over.
    """
    # guard
    require(tokens.keys() <= {group.id for group in state.running}, "compute", "V0-LIF-8")
    # effect
    running = tuple(
        _computed(group, tokens[group.id]) if group.id in tokens else group
        for group in state.running
    )
    events = tuple(
        Event("chunk", group.id, "V0-CHK-1", after=tokens[group.id])
        if group.is_prefill
        else Event("decode", group.id, "V0-BUD-6", after=tokens[group.id])
        for group in state.running
        if group.id in tokens
    )
    return evolve(state, running=running), events


def _computed(group: Group, tokens: int) -> Group:
    computed = group.computed + tokens
    if computed < group.tokens:
        return evolve(group, computed=computed)
    return evolve(group, computed=computed, is_prefill=False, cached=None)


def fork(ctx: Context, state: State, request_id: str) -> Moved:
    """A group that samples its first token becomes as many sequences as it asks for.

    Source: "Forking Sequences": they share the parent's blocks until one of them writes.
    """
    # guard
    group = require_among(state.running, request_id, "fork", "V0-SEQ-1")
    require(len(group.sequences) == 1, "fork", "V0-SEQ-1")
    # effect
    children = ctx.names[group.id][1:]
    forked, parent = block_manager.fork(ctx, state, group, children)
    events = tuple(Event("fork", group.id, "V0-SEQ-1", group.id, child) for child in children)
    return changed(forked, parent), events


def sample(ctx: Context, state: State, sampled: Mapping[str, int], ended: Container[str]) -> Moved:
    """Sequences get new tokens; those in `ended` then have all of theirs.

    All tokens but a sequence's last are in the cache already: several steps followed one decision.
    """
    # guard
    known = {sequence.id for group in state.running for sequence in group.unfinished}
    require(sampled.keys() <= known, "sample", "V0-CHK-6")

    # effect
    def grown(sequence: Sequence) -> Sequence:
        if sequence.id not in sampled:
            return sequence
        count = sequence.generated + sampled[sequence.id]
        return evolve(sequence, generated=count, is_finished=sequence.id in ended)

    def grown_group(group: Group) -> Group:
        counts = {sampled[sequence.id] for sequence in group.sequences if sequence.id in sampled}
        if not counts:
            return group
        (count,) = counts  # a group of several samples one for each
        computed = group.computed + count - 1
        return evolve(group, sequences=tuple(map(grown, group.sequences)), computed=computed)

    events = tuple(
        Event("sample", ctx.owners[sequence_id], "V0-CHK-6", after=sequence_id)
        for sequence_id in sampled
    )
    return evolve(state, running=tuple(map(grown_group, state.running))), events


def free_finished(ctx: Context, state: State, request_id: str) -> Moved:
    """Finished sequences give their blocks back ("Freeing Finished Sequences")."""
    # guard
    group = require_among(state.running, request_id, "free_finished", "V0-LIF-4")
    # effect
    over = [sequence for sequence in group.sequences if sequence.is_finished]
    freed, left = block_manager.free_tables(ctx, state, group, over)
    return changed(freed, left), ()


def finish(ctx: Context, state: State, request_id: str) -> Moved:
    """A group without unfinished sequences gives all that it holds back and leaves.

    Source: "Freeing a Finished Sequence Group"; what its encoder computed goes first.
    """
    # guard
    group = require_among(state.running, request_id, "finish", "V0-LIF-4")
    require(not group.unfinished, "finish", "V0-LIF-4")
    # effect
    freed, left = block_manager.free_cross(ctx, state, group)
    freed, _ = block_manager.free_tables(ctx, freed, left, left.sequences)
    after = evolve(without(freed, group.id), finished=state.finished | {group.id})
    return after, (Event("finish", group.id, "V0-LIF-4"),)
