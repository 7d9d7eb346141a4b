"""Faults of requests that wait for their grammars."""

from typing import Any

from attrs import evolve

from reference.spyre import machine, step, transitions
from spec.spyre.records import Context
from spec.spyre.state import State
from tests.checks.faults.patches import Wrong, configured, kept, result
from tests.checks.faults.spyre.table import fault

PASSED, HELD = "grammar", "grammar, released"

fault(step, "in_line", of="admit", on=PASSED, rules="SPY-PRI-4, SPY-PRI-6")(
    lambda _right, _ctx, state: state.waiting,
    "not passed over: a request whose grammar is not ready keeps others from their turns",
)
fault(transitions, "arrive", on=PASSED, rules="LIF-9")(
    result(compiling=lambda ids: ids | {"another"}),
    "another grammar: an arrival sets the grammar of another request going",
)
fault(transitions, "compiled", on=PASSED, rules="LIF-9")(
    result(compiling=lambda ids: ids | {"another"}),
    "another is awaited: once a grammar is ready another one is not",
)
fault(transitions, "abort", on=PASSED, rules="LIF-9")(
    lambda right, ctx, state, name, **how: evolve(
        right(ctx, state, name, **how), compiling=state.compiling
    ),
    "awaited for ever: the grammar of a request that has left is still awaited",
)
fault(step, "_at_rest", of="step", on=PASSED, rules="SPY-STR-2")(
    result(compiling=frozenset()), "ready with a step: a step makes all grammars ready"
)
fault(transitions, "arrive", on=HELD, rules="LIF-9")(
    configured(reading="text"), "in line with others: in 2.6.3 none goes before it that comes later"
)
fault(transitions, "hold_up", on=HELD, rules="SPY-PRI-13")(
    lambda _right, _ctx, state, _row: (evolve(state, waiting=state.waiting[::-1]), ()),
    "front turned round: the request that holds others up turns the queue round",
)
fault(step, "_at_rest", of="step", on=HELD, rules="SPY-STR-2")(
    kept("behind"), "newcomers for ever: also behind a step others that come go before them"
)


@fault(machine, "scheduler_step", of="admit", on=PASSED, rules="SPY-PRI-5, SPY-STR-1")
def goes_on_without_its_grammar(right: Wrong, ctx: Context, state: State, *given: Any) -> Any:
    """A request is prefilled although its grammar is not ready."""
    taken = right(ctx, evolve(state, compiling=frozenset()), *given)
    return evolve(taken, before=state, after=evolve(taken.after, compiling=state.compiling))


@fault(step, "choose_prefill", of="hold_up", on=HELD, rules="SPY-PRI-6")
def holds_up_as_it_is(right: Wrong, ctx: Context, state: State) -> Any:
    """A request whose grammar is ready holds others up."""
    candidate, refusal = right(ctx, state)
    ready = [row for row in state.waiting if row.id not in state.compiling]
    if candidate in ready and len(state.waiting) > 1:
        return None, refusal
    return candidate, refusal
