"""Faults of steps in flight: what takes off, what lands, and for whom."""

from typing import Any

from attrs import evolve

from reference.core.frozen_map import FrozenMap
from reference.vllm_v1 import step, transitions
from spec.vllm_v1 import config
from spec.vllm_v1.config import Connector
from spec.vllm_v1.records import Context, Sequence, State
from spec.vllm_v1.releases import Release
from tests.checks.faults.patches import (
    Wrong,
    always,
    changed,
    configured,
    depending,
    each,
    kept,
    own_row,
    plus,
    result,
)
from tests.checks.faults.vllm_v1.table import fault

AHEAD, PREFIXES = "in flight", "in flight, priority and prefixes"
SENT, IN_VAIN = "in flight, loaded and sent", "in flight, preempted in vain"
LOST = "in flight, loads lost"

# --- taking off -----------------------------------------------------------------------------

fault(transitions, "launch", on=AHEAD, rules="V1-ASY-3")(
    result(running=each(placeholders=plus(1))), "a token more is awaited"
)
fault(transitions, "launch", on=AHEAD, rules="V1-ASY-2, V1-ASY-3, V1-ASY-7")(
    result(flights=lambda flights: flights[-1:]), "a step that takes off replaces the last"
)
fault(transitions, "launch", on=AHEAD, rules="V1-ASY-2, V1-ASY-3")(
    result(flights=lambda flights: (*flights[:-1], evolve(flights[-1], samples=()))),
    "a step in flight samples nothing",
)
fault(config, "is_last_in_flight", of="catch_up", on=AHEAD, rules="V1-ASY-5, V1-BUD-3")(
    always(False), "a step more is planned behind the last token"
)
fault(config, "is_last_in_flight", of="catch_up", on=AHEAD, rules="V1-BUD-3, V1-BUD-4")(
    lambda right, computed, *given: right(computed + 1, *given), "the last step is never planned"
)


@fault(step, "_in_flight", of="launch", on=AHEAD, rules="V1-ASY-2, V1-ASY-7")
def nothing_takes_off_without_tokens(
    right: Wrong, ctx: Context, before: State, plan: Any, environment: Any
) -> Any:
    """A step that schedules nothing is not in flight, so that results come a step earlier."""
    idle = (
        before if plan.scheduled else evolve(before, running=(), waiting=(), unreported=frozenset())
    )
    return right(ctx, idle, plan, environment)


@fault(step, "_in_flight", of="land", on=AHEAD, rules="V1-ASY-2")
def results_are_always_waited_for(right: Wrong, ctx: Context, *given: Any) -> Any:
    """The results of a step come in the step itself."""
    synchronous = changed(config=changed(steps_in_flight=0))
    return right(synchronous(ctx), *given)


fault(transitions, "launch", on="in flight, drafts", rules="V1-ASY-3, V1-PRG-1, V1-SPC-3")(
    result(running=each(placeholders=lambda count: min(count, 1))), "drafts are not awaited"
)
fault(transitions, "launch", on="in flight, drafts", rules="V1-SPC-6")(
    result(running=each(drafts=0)), "no draft is planned before the last are verified"
)
fault(transitions, "launch", on="in flight, drafts", rules="V1-ASY-2, V1-ASY-3")(
    result(flights=lambda flights: (*flights[:-1], evolve(flights[-1], drafts=FrozenMap()))),
    "a step in flight verifies nothing",
)

STAGES = "in flight, two stages"

fault(State, "has_just_sampled", of="catch_up", on=STAGES, rules="V1-ASY-8, V1-BUD-3")(
    always(False), "the stages of a pipeline do not take turns"
)
fault(State, "has_just_sampled", of="catch_up", on=STAGES, rules="V1-BUD-3, V1-BUD-4")(
    lambda right, state, id_, steps: right(state, id_, steps + 1), "a stage waits for itself"
)
fault(
    step,
    "schedule_waiting",
    of="admit",
    on=STAGES,
    rules="V1-ASY-3, V1-ASY-9, V1-ORD-2, V1-ORD-3, V1-ORD-5",
)(
    lambda right, ctx, plan: changed(state=changed(flights=plan.state.flights))(
        right(ctx, changed(state=changed(flights=()))(plan))
    ),
    "a victim is admitted before its late token comes",
)

# --- landing --------------------------------------------------------------------------------

fault(transitions, "land", on=AHEAD, rules="V1-ASY-1, V1-ASY-2, V1-ASY-3, V1-ASY-7")(
    kept("flights"), "results come twice"
)


@fault(transitions, "land", on=AHEAD, rules="V1-ASY-2")
def newest_is_forgotten(_right: Wrong, _ctx: Context, state: State) -> State:
    """The step that has just taken off is taken for the one that landed."""
    return evolve(state, flights=state.flights[:-1])


fault(transitions, "receive", on=AHEAD, rules="V1-ASY-3")(
    depending(lambda _ctx, _state, id_: changed(running=own_row(id_, placeholders=plus(1)))),
    "a token that came is awaited still",
)
fault(transitions, "receive", on=AHEAD, rules="V1-LIF-4, V1-PRG-8, V1-SPC-4")(
    kept("waiting"), "a victim's token is lost"
)


@fault(
    step,
    "_receive",
    of="receive",
    on=AHEAD,
    rules="V1-ASY-4, V1-KV-16, V1-LIF-1, V1-LIF-2, V1-ORD-4",
)
def one_that_left_comes_back(right: Wrong, results: Any, request_id: str, *given: Any) -> None:
    """A request whose token should be discarded waits again."""
    right(results, request_id, *given)
    state = results.state
    if request_id not in results.outputs:
        again = Sequence(request_id, results.ctx.requests[request_id].prompt_len)
        results.state = evolve(state, waiting=(*state.waiting, again))


@fault(transitions, "preempt", on=AHEAD, rules="V1-ASY-6, V1-PRE-3")
def victim_awaits_its_token(right: Wrong, ctx: Context, plan: Any, victim: Any) -> Any:
    """A victim keeps its placeholders."""
    own = changed(waiting=own_row(victim.id, placeholders=victim.placeholders))
    return changed(state=own)(right(ctx, plan, victim))


fault(transitions, "cache_sampled", on=PREFIXES, rules="V1-KV-17, V1-KV-8")(
    kept("pool"), "what results fill is not found before the next step"
)

# --- beside a connector ---------------------------------------------------------------------

fault(transitions, "is_written", on=IN_VAIN, rules="V1-LIF-3")(
    always(False), "blocks are free while a step in flight writes to them"
)
fault(transitions, "preempt", on=IN_VAIN, rules="V1-ASY-2, V1-ASY-7, V1-EXT-14")(
    configured(connector=Connector.NONE, sends=False), "a victim's blocks are free at once"
)
fault(transitions, "give_back", on=IN_VAIN, rules="V1-KV-2, V1-LIF-3")(
    lambda _right, _ctx, state, _row: state, "blocks that are given back are lost"
)
fault(transitions, "land", on=SENT, rules="V1-KV-2, V1-KV-8")(
    kept("pool"), "what waits for results is not free when they have come"
)
fault(step, "_make_room", of="preempt", on=SENT, rules="V1-PRE-6")(
    configured(release=Release.V0_28_0), "0.33.0 preempts in vain"
)
fault(transitions, "_unawaited", of="preempt", on=IN_VAIN, rules="V1-ASY-2, V1-EXT-14")(
    lambda _right, state, _id: state, "a victim ends with a late token, and nothing of it is sent"
)


@fault(transitions, "undo", on=LOST, rules="V1-ASY-2, V1-ASY-3")
def one_that_lost_awaits_its_token(right: Wrong, ctx: Context, state: State, *given: Any) -> Any:
    """A request that goes back is still given what steps in flight sample for it."""
    done, events = right(ctx, state, *given)
    rows = {row.id: row.placeholders for row in state.running}
    running = tuple(evolve(row, placeholders=rows[row.id]) for row in done.running)
    return evolve(done, running=running, flights=state.flights), events


@fault(step, "_lose_in_flight", of="lose_load", on=LOST, rules="V1-ASY-2, V1-ASY-3")
def only_the_step_itself_goes_back(right: Wrong, results: Any, *given: Any) -> None:
    """What was planned since the step that brought the load counts as computed."""
    flights = results.state.flights
    results.state = evolve(results.state, flights=())
    right(results, *given)
    results.state = evolve(results.state, flights=flights)
