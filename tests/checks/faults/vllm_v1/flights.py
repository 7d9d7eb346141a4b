"""Faults of steps in flight: what takes off, what lands, and for whom."""

from typing import Any

from attrs import evolve

from reference.core.frozen_map import FrozenMap
from reference.vllm_v1 import step, transitions
from spec.vllm_v1 import config
from spec.vllm_v1.records import Context, Sequence, State
from tests.checks.faults.patches import (
    Wrong,
    always,
    changed,
    depending,
    each,
    kept,
    own_row,
    plus,
    result,
)
from tests.checks.faults.vllm_v1.table import fault

AHEAD, PREFIXES = "in flight", "in flight, priority and prefixes"

# --- taking off -----------------------------------------------------------------------------

fault(transitions, "launch", on=AHEAD, rules="V1-ASY-3")(
    result(running=each(placeholders=plus(1))), "a token more is awaited"
)
fault(transitions, "launch", on=AHEAD, rules="V1-ASY-2, V1-ASY-3")(
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


@fault(step, "_in_flight", of="launch", on=AHEAD, rules="V1-ASY-2")
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

# --- landing --------------------------------------------------------------------------------

fault(transitions, "land", on=AHEAD, rules="V1-ASY-1, V1-ASY-2, V1-ASY-3")(
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
