"""Faults of what is remembered for a later step, of what changes between two, and of orders."""

from typing import Any

from attrs import evolve

from reference.core.frozen_map import FrozenMap, without
from reference.vllm_v0 import block_manager, memory, step, transitions
from tests.checks.faults.patches import (
    Wrong,
    backwards,
    changed,
    each,
    first_to_back,
    last,
    last_to_front,
    plus,
    result,
)
from tests.checks.faults.vllm_v0.table import FAULTS, PASSED, fault

_BEFORE = len(FAULTS)

# --- between two steps ----------------------------------------------------------------------------

fault(transitions, "arrive", on="artificial", rules="V0-LIF-3")(
    result(artificial=0), "arrival uses up preemptions"
)
fault(transitions, "arrive", on="delay", rules="V0-LIF-3")(
    result(has_prefilled=False), "arrival forgets the duration of prompts"
)
fault(transitions, "arrive", on="priority", rules="V0-LIF-3")(
    result(waiting=last(arrival=0)), "newcomer counts as the first"
)
fault(transitions, "arrive", on="shared prefix", rules="V0-LIF-3")(
    result(computed=frozenset()), "arrival forgets what is computed"
)
fault(transitions, "abort", on="shared prefix", rules="V0-LIF-3")(
    result(marks=FrozenMap()), "abort forgets all uses"
)
fault(transitions, "abort", on="encoder", rules="V0-LIF-3")(
    result(pool=changed(free=backwards)), "abort turns the free list"
)
fault(transitions, "abort", on="chunked", rules="V0-LIF-3")(
    result(running=each(is_prefill=True)), "abort lets the running start their prompts again"
)

# --- what a request remembers ---------------------------------------------------------------------

fault(transitions, "swap_in", on="chunked, swap", rules="V0-CHK-9")(
    result(running=last(is_prefill=True)), "back as a prompt"
)
fault(transitions, "_computed", of="compute", on="shared prefix", rules="V0-PFX-9")(
    lambda right, group, tokens: evolve(right(group, tokens), cached=group.cached),
    "what was cached is remembered beyond the prompt",
)
fault(transitions, "_computed", of="compute", on="chunked, caching", rules="V0-PFX-9")(
    lambda right, group, tokens: evolve(right(group, tokens), cached=None),
    "what was cached is forgotten with the first chunk",
)
fault(transitions, "compute", on="documented, chunked, forks", rules="V0-LIF-9")(
    lambda right, ctx, state, tokens: _more_is_computed(right(ctx, state, tokens), tokens),
    "what is not scheduled counts a token as computed",
)
fault(transitions, "swap_out", on="swap", rules="V0-LIF-6, V0-LIF-9")(
    result(waiting=each(computed=1)), "what waits counts a token when another is swapped out"
)
fault(transitions, "finish", on="recompute", rules="V0-LIF-2")(
    result(aborted=frozenset()), "the aborted are forgotten when one finishes"
)
fault(transitions, "finish", on="too long", rules="V0-ADM-3, V0-LIF-2")(
    result(ignored=frozenset()), "the ignored are forgotten when one finishes"
)
fault(step, "aged", of="scheduler_step", on="recompute", rules="V0-ADM-8")(
    result(has_prefilled=True), "a prompt is noted where nothing waits for one"
)
fault(transitions, "swap_out", on="swap, shared prefix", rules="V0-SWP-16")(
    result(swapped=last(is_forgotten=True)), "swapped out and forgotten"
)


def _more_is_computed(done: Any, tokens: Any) -> Any:
    state, events = done
    more = changed(computed=plus(1))
    running = tuple(row if row.id in tokens else more(row) for row in state.running)
    return evolve(state, running=running), events


# --- blocks ---------------------------------------------------------------------------------------

fault(block_manager, "allocate", on="recompute", rules="V0-BLK-6, V0-LKA-6")(
    lambda right, ctx, state, group: _with_slots(right(ctx, state, group), plus(-1)),
    "last token of a prompt gets no slot",
)
fault(memory, "release", of="give_back", on="shared prefix", rules="V0-BLK-10, V0-PFX-4, V0-PFX-8")(
    lambda right, pool, table: _without_contents(right(pool, table)), "given back without content"
)
fault(step, "accessed", of="scheduler_step", on="whole hit", rules="V0-BLK-12")(
    lambda right, ctx, state, scheduled: right(ctx, state, [*scheduled][:1]),
    "one request of a step counts as used",
)
fault(transitions, "swap_out", on="swap", rules="V0-BLK-10")(
    result(cpu=changed(free=backwards)), "free list of the CPU turned by swapping out"
)
fault(transitions, "swap_in", on="swap", rules="V0-BLK-10")(
    result(cpu=changed(free=last_to_front)), "last block of the CPU is next after swapping in"
)
fault(transitions, "recompute", on="recompute", rules="V0-BLK-10")(
    result(pool=changed(free=first_to_back)), "block of a victim goes to the end of the free list"
)


def _with_slots(done: Any, change: Any) -> Any:
    state, group = done
    return state, evolve(group, sequences=each(slots=change)(group.sequences))


def _without_contents(pool: Any) -> Any:
    gone = [block for block in pool.free if block in pool.keys]
    kept = {key: blocks for key, blocks in pool.cached.items() if blocks[0] not in gone}
    return evolve(pool, keys=without(pool.keys, *gone), cached=FrozenMap(kept))


# --- orders ---------------------------------------------------------------------------------------

fault(step, "batch_order", of="scheduler_step", on="recompute", rules="V0-ORD-7")(
    lambda right, run: backwards(tuple(right(run))), "batch turned round"
)
fault(transitions, "sample", on="recompute", rules="V0-ORD-11")(
    result(running=backwards), "running queue turned when tokens are sampled"
)


@fault(step, "held_to_limits", of="schedule", on="recompute", rules="V0-ORD-11")
def admitted_to_the_front_of_running(right: Wrong, run: Any) -> None:
    right(run)
    run.state = changed(running=last_to_front)(run.state) if run.new else run.state


@fault(step, "held_to_limits", of="schedule", on="swap", rules="V0-ORD-11")
def back_in_front_of_those_that_run(right: Wrong, run: Any) -> None:
    right(run)
    run.state = changed(running=last_to_front)(run.state) if run.swapped_in else run.state


@fault(
    step,
    "schedule_swapped",
    of="schedule",
    on="open, lookahead, swap",
    rules="V0-BLK-10, V0-SWP-15",
)
def last_swapped_out_comes_back_first(right: Wrong, run: Any) -> None:
    run.state = changed(swapped=backwards)(run.state)
    right(run)
    run.state = changed(swapped=backwards)(run.state)


@fault(step, "schedule_swapped", of="schedule", on=PASSED, rules="V0-SWP-15")
def what_finds_no_room_is_passed(right: Wrong, run: Any) -> None:
    right(run)
    first_, *others = run.state.swapped or (None,)
    if others:
        run.state = evolve(run.state, swapped=tuple(others))
        right(run)
        run.state = evolve(run.state, swapped=(first_, *run.state.swapped))


@fault(step, "schedule_prefills", of="schedule", on="forks, several", rules="V0-ORD-1, V0-ORD-11")
def admitted_from_the_back(right: Wrong, run: Any, share: Any) -> None:
    run.state = changed(waiting=backwards)(run.state)
    right(run, share)
    run.state = changed(waiting=backwards)(run.state)


REMEMBERED = FAULTS[_BEFORE:]
