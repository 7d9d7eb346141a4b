"""Violations: their message, and counterexamples that are real and shortest runs."""

from collections.abc import Iterable

import networkx as nx
import pytest
from attrs import Factory, frozen
from hypothesis import given
from hypothesis import strategies as st

from checks.explore.examine import DEADLOCK, MACHINE_ERROR
from checks.explore.model import (
    Always,
    Counterexample,
    Eventually,
    OnStep,
    Property,
    StateT,
    Transition,
    Violation,
    Witness,
)
from checks.explore.replay import UnrepeatableError
from checks.explore.result import Outcome, Result
from checks.explore.search import Order, explore
from tests.checks.explore.toys import (
    CRITICAL,
    Counter,
    Drawn,
    Mutex,
    Philosophers,
    Processes,
    Queue,
    drawn,
)


def _only(result: Result[StateT]) -> Violation[StateT]:
    (violation,) = result.violations
    assert result.outcome is Outcome.VIOLATED
    return violation


def _actions(run: Counterexample[StateT]) -> list[str]:
    return [step.action for step in run.steps]


def test_counterexample_shows_every_action_state_and_record() -> None:
    small = Always[int]("small", lambda state: f"found {state}" if state == 2 else None)

    violation = _only(explore(Counter(9), [small]))

    steps = (Transition("inc", 1, record=0, fair=True), Transition("inc", 2, record=1, fair=True))
    assert violation == Violation("small", "found 2", Counterexample(0, steps))
    assert violation.counterexample.last == 2


def test_initial_state_can_violate() -> None:
    positive = Always[int]("positive", lambda state: None if state else "found 0")

    assert _only(explore(Counter(9), [positive])).counterexample == Counterexample(0)


def _alone(state: Processes) -> str | None:
    inside = state.count(CRITICAL)
    return f"{inside} processes are inside" if inside > 1 else None


@pytest.mark.parametrize("symmetric", [False, True])
def test_mutex_without_lock_lets_two_in_after_four_steps(symmetric: bool) -> None:
    model = Mutex(3, locked=False, symmetric=symmetric)

    violation = _only(explore(model, [Always("alone", _alone)]))

    assert (violation.rule, violation.found) == ("alone", "2 processes are inside")
    assert sorted(a.split()[0] for a in _actions(violation.counterexample)) == [
        *["enter"] * 2,
        *["try"] * 2,
    ]
    assert _alone(violation.counterexample.last)


def _nothing_lost(
    before: tuple[int, int, int], step: Transition[tuple[int, int, int]]
) -> str | None:
    return (
        "one is lost" if sum(step.state[1:]) < sum(before[1:]) + (step.action == "arrive") else None
    )


def test_leaky_queue_loses_the_first_that_does_not_fit() -> None:
    kept = OnStep("kept", _nothing_lost)

    violation = _only(explore(Queue(arrivals=5, room=2), [kept]))

    assert _actions(violation.counterexample) == ["arrive"] * 3
    assert violation.found == "one is lost"
    assert explore(Queue(arrivals=5, room=2, leaks=False), [kept]).outcome is Outcome.HOLDS


def test_philosophers_who_all_hold_a_left_fork_are_a_deadlock() -> None:
    violation = _only(explore(Philosophers(3), []))

    assert violation.rule == DEADLOCK
    assert violation.found == "work is pending and no action is possible"
    assert _actions(violation.counterexample) == ["take 0", "take 1", "take 2"]


def test_end_of_all_work_is_no_deadlock() -> None:
    result = explore(Drawn(edges=((0, 1, True),)), [])

    assert (result.outcome, result.deadlocks) == (Outcome.HOLDS, 0)


def _forbid(state: int) -> Always[int]:
    return Always(f"not {state}", lambda found: "found" if found == state else None)


def test_search_stops_at_the_first_violation() -> None:
    result = explore(Counter(9), [_forbid(3), _forbid(5)])

    assert [v.rule for v in result.violations] == ["not 3"]
    assert (result.stopped_by, result.states, result.checkpoint) == ("violation", 4, None)


def test_keep_going_finds_the_first_of_each_rule_and_every_state() -> None:
    high = Always[int]("high", lambda state: f"found {state}" if state > 5 else None)

    result = explore(Counter(9), [_forbid(3), high, _forbid(77)], keep_going=True)

    assert [(v.rule, v.found) for v in result.violations] == [
        ("not 3", "found"),
        ("high", "found 6"),
    ]
    assert (result.outcome, result.stopped_by, result.states) == (Outcome.VIOLATED, None, 10)


def test_violated_rule_is_not_asked_again() -> None:
    asked: list[int] = []

    def zero(state: int) -> str | None:
        asked.append(state)
        return None if state == 0 else f"found {state}"

    explore(Counter(9), [Always("zero", zero)], keep_going=True)

    assert asked == [0, 1]


@given(drawn(), st.sets(st.integers(0, 5)), st.sets(st.integers(0, 13)))
def test_breadth_first_counterexamples_are_shortest_runs(
    model: Drawn, bad_states: set[int], bad_edges: set[int]
) -> None:
    labels = {f"edge {number}" for number in bad_edges}
    properties: list[Property[int]] = [
        Always("state", lambda state: "bad" if state in bad_states else None),
        OnStep("edge", lambda _, step: "bad" if step.action in labels else None),
    ]
    graph = model.graph()
    distances = {
        node: min(
            nx.shortest_path_length(graph, start, node)
            for start in model.starts
            if nx.has_path(graph, start, node)
        )
        for node in graph
    }
    bad_sources = [
        source for number, (source, _, _) in enumerate(model.edges) if number in bad_edges
    ]
    expected = {
        "state": [distances[node] for node in bad_states if node in graph],
        "edge": [distances[source] + 1 for source in bad_sources if source in graph],
        DEADLOCK: [distances[i] for i in graph if i in model.stuck and not graph.out_degree(i)],
    }

    result = explore(model, properties, keep_going=True)

    for violation in result.violations:
        _assert_run(model, violation.counterexample)
    lengths = {v.rule: len(v.counterexample.steps) for v in result.violations}
    assert lengths == {rule: min(found) for rule, found in expected.items() if found}


@given(drawn(), st.sampled_from(["bfs", "dfs"]))
def test_counterexamples_of_both_orders_are_runs(model: Drawn, order: Order) -> None:
    properties = [_forbid(state) for state in range(6)]

    result = explore(model, properties, order=order, keep_going=True)

    assert {v.rule for v in result.violations} - {DEADLOCK} == {f"not {i}" for i in model.graph()}
    for violation in result.violations:
        _assert_run(model, violation.counterexample)
        if violation.rule != DEADLOCK:
            assert violation.rule == f"not {violation.counterexample.last}"


def _assert_run(model: Drawn, run: Counterexample[int]) -> None:
    assert run.initial in model.starts
    states = [run.initial, *(step.state for step in run.steps)]
    for before, step in zip(states, run.steps, strict=False):
        source, target, fair = model.edges[int(step.action.removeprefix("edge "))]
        assert (source, target, fair) == (before, step.state, step.fair)


def _divide(state: int) -> int:
    return 1 // (3 - state)


RAISING: list[Property[int]] = [
    Always("rule", lambda state: "never" if _divide(state) > 5 else None),
    OnStep("rule", lambda _, step: "never" if _divide(step.state) > 5 else None),
    Eventually("rule", trigger=lambda state: _divide(state) > 5, goal=lambda _: False),
    Eventually("rule", trigger=lambda _: False, goal=lambda state: _divide(state) > 5),
]


@pytest.mark.parametrize("raising", RAISING)
@pytest.mark.parametrize("keep_going", [False, True])
def test_property_that_raises_is_violated(raising: Property[int], keep_going: bool) -> None:
    violation = _only(explore(Counter(5), [raising], keep_going=keep_going))

    assert violation.rule == "rule"
    assert violation.found == "raised ZeroDivisionError: integer division or modulo by zero"
    assert violation.counterexample.last == 3


def test_witness_that_raises_is_a_violation() -> None:
    witness = Witness[int]("rule", lambda _, step: _divide(step.state) > 5)

    violation = _only(explore(Counter(5), [], [witness]))

    assert violation.found == "raised ZeroDivisionError: integer division or modulo by zero"
    assert violation.counterexample.last == 3


class GuardError(Exception):
    """A transition was taken although its guard does not hold."""


@frozen
class Failing(Counter):
    """Raises in one of its four functions when it comes to 3."""

    where: str = "successors"

    def successors(self, state: int) -> Iterable[Transition[int]]:
        self._fail("successors", state)
        return super().successors(state)

    def canonical(self, state: int) -> int:
        self._fail("canonical", state)
        return state

    def unfinished(self, state: int) -> bool:
        self._fail("unfinished", state)
        return False

    def _fail(self, where: str, state: int) -> None:
        if state == 3 and where == self.where:
            raise GuardError(f"{where} of {state}")


@pytest.mark.parametrize("where", ["successors", "canonical", "unfinished"])
@pytest.mark.parametrize("keep_going", [False, True])
def test_machine_that_raises_is_a_violation_with_the_way_there(
    where: str, keep_going: bool
) -> None:
    violation = _only(explore(Failing(3, where=where), [], keep_going=keep_going))

    assert violation.rule == MACHINE_ERROR
    assert violation.found == f"raised GuardError: {where} of 3"
    assert violation.counterexample.last == 3


def test_state_whose_edges_are_unknown_is_no_end_of_a_run() -> None:
    """An `Eventually` is not refuted by the machine's error."""
    done = Eventually[int]("done", trigger=lambda _: True, goal=lambda _: False)

    result = explore(Failing(9), [done], keep_going=True)

    assert [violation.rule for violation in result.violations] == [MACHINE_ERROR]


@frozen
class Forgetful(Counter):
    """Takes larger steps from the fourth call on."""

    asked: list[int] = Factory(list)

    def successors(self, state: int) -> Iterable[Transition[int]]:
        self.asked.append(state)
        yield Transition("inc", state + (1 if len(self.asked) <= 3 else 2))


def test_model_that_answers_differently_the_second_time_is_refused() -> None:
    with pytest.raises(UnrepeatableError) as raised:
        explore(Forgetful(9), [_forbid(3)])

    assert str(raised.value) == (
        "the model is not repeatable: `initial` or `successors` gave other states, or another "
        "order, when asked again; make them pure, and sort what they take from a set"
    )
