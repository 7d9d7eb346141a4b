"""`Eventually` under weak fairness, by cases and against the definition on all small graphs."""

from collections.abc import Iterable
from itertools import chain, combinations

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.explore.bounds import Bounds
from checks.explore.model import Counterexample, Eventually
from checks.explore.result import Outcome
from checks.explore.search import explore
from tests.checks.explore.toys import (
    CRITICAL,
    TRYING,
    Counter,
    Drawn,
    Edge,
    Mutex,
    Polite,
    Processes,
    drawn,
)

SERVED = Eventually[Processes](
    "served", trigger=lambda state: TRYING in state, goal=lambda state: CRITICAL in state
)
THROUGH = Eventually[str]("through", trigger=lambda _: True, goal=lambda s: s == "through")


def _reaches(goal: int, trigger: int = 0) -> Eventually[int]:
    return Eventually("reaches", lambda state: state == trigger, lambda state: state == goal)


def _drawn(edges: str) -> Drawn:
    """A graph from edges such as 0>1 and 0=1, of two classes, and 0-1, which nothing forces."""
    classes = {"-": 0, ">": 1, "=": 2}
    return Drawn(
        edges=tuple((int(edge[0]), int(edge[2]), classes[edge[1]]) for edge in edges.split())
    )


HOLDS = {
    "the goal in the triggering state itself is enough": ("0>1", _reaches(0)),
    "a trigger that is never met asks for nothing": ("0>1", _reaches(5, trigger=4)),
    # A busy environment cannot prevent a step forever.
    "a fair way out of an unfair cycle is taken": ("0-1 1-0 0>2 1>2", _reaches(2)),
    "a fair edge between two cycles makes neither fair": ("0-0 0>1 1-1 1>2", _reaches(2)),
    "a cycle through the goal does not refute": ("0>1 1>2 2>0", _reaches(2)),
    "a cycle in the goal does not refute": ("0-0 0>1 1>1", _reaches(1)),
    # Steps that go on are no reason for a load never to end.
    "one class goes round, the other always leads out": ("0>1 1>0 0=2 1=2", _reaches(2)),
    "a component refuses a class though the other rests in a state of it": (
        "0>1 1-0 0=2 1=2",
        _reaches(2),
    ),
}


@pytest.mark.parametrize(("edges", "eventually"), HOLDS.values(), ids=HOLDS)
def test_goal_is_reached(edges: str, eventually: Eventually[int]) -> None:
    assert explore(_drawn(edges), [eventually]).outcome is Outcome.HOLDS


ENDS = "the run may end here without the goal: no fair action is possible"
_REPEAT = "steps {} to {} repeat for ever without the goal"

# The graph, what it does not reach, what was found, the edges of the run, and where it repeats.
REFUTED = {
    "a run that ends without the goal": ("0>1 1>2", _reaches(5), ENDS, [0, 1], 2),
    "a goal before the trigger": ("0>1 1>2", _reaches(1, trigger=2), ENDS, [0, 1], 2),
    "an edge to the goal that nothing forces": ("0-1", _reaches(1), ENDS, [], 0),
    "an unfair cycle through a state that has no fair edge": (
        "0-1 1-0 0>2",
        _reaches(2),
        _REPEAT.format(1, 2),
        [0, 1],
        0,
    ),
    "a cycle with an edge of each class, and not the shorter one with one class": (
        "0>1 1>0 1=3 3>0 0=2 1=2 3=2",
        _reaches(2),
        _REPEAT.format(1, 3),
        [0, 2, 3],
        0,
    ),
    "a cycle with a state where the class that leads out is not possible": (
        "0>1 1>0 1>3 3>0 0=2 1=2",
        _reaches(2),
        _REPEAT.format(1, 3),
        [0, 2, 3],
        0,
    ),
    "a cycle of no class, each of them not possible somewhere": (
        "0-1 1-0 0>2 1=2",
        _reaches(2),
        _REPEAT.format(1, 2),
        [0, 1],
        0,
    ),
    "a fair cycle": ("0>1 1>2 2-1 1>3 2>3", _reaches(3), _REPEAT.format(2, 3), [0, 1, 2], 1),
    "the fair one of two edges to the same state": (
        "0-0 0>0 0>1",
        _reaches(1),
        "step 1 repeats for ever without the goal",
        [1],
        0,
    ),
    # To the cycle 4, 5 in two steps or in three; back from 5 in one step or through 6.
    "the shortest way and the shortest cycle": (
        "0>3 3>4 0>1 1>2 2>4 4>5 5>6 6>4 5>4",
        _reaches(9),
        _REPEAT.format(3, 4),
        [0, 1, 5, 8],
        2,
    ),
    "not a shorter way through the goal": ("0>1 1>4 0>2 2>3 3>4", _reaches(1), ENDS, [2, 3, 4], 3),
    "not a shorter cycle through the goal": (
        "0>1 1>0 0>2 2>3 3>0",
        _reaches(1),
        _REPEAT.format(1, 3),
        [2, 3, 4],
        0,
    ),
}


@pytest.mark.parametrize(
    ("edges", "eventually", "found", "way", "loop_from"), REFUTED.values(), ids=REFUTED
)
def test_goal_is_refuted(
    edges: str, eventually: Eventually[int], found: str, way: list[int], loop_from: int
) -> None:
    (violation,) = explore(_drawn(edges), [eventually]).violations

    run = violation.counterexample
    assert (violation.found, run.initial, run.loop_from) == (found, 0, loop_from)
    assert [step.action for step in run.steps] == [f"edge {number}" for number in way]


def test_door_where_bowing_counts_as_progress_is_a_livelock() -> None:
    (violation,) = explore(Polite(bowing_is_fair=True), [THROUGH]).violations

    assert violation.found == "steps 1 to 2 repeat for ever without the goal"
    assert [s.action for s in violation.counterexample.steps] == ["bow left", "bow right"]
    assert violation.counterexample.loop_from == 0


def test_livelock_is_found_up_to_symmetry() -> None:
    (violation,) = explore(Polite(bowing_is_fair=True, symmetric=True), [THROUGH]).violations

    assert violation.found == "step 1 repeats for ever without the goal"
    assert [s.action for s in violation.counterexample.steps] == ["bow left"]


@pytest.mark.parametrize("symmetric", [False, True])
def test_mutex_lets_a_process_in_exactly_if_entering_is_fair(symmetric: bool) -> None:
    eager = explore(Mutex(3, symmetric=symmetric), [SERVED])
    lazy = explore(Mutex(3, symmetric=symmetric, enter_is_fair=False), [SERVED])

    assert eager.outcome is Outcome.HOLDS
    assert [len(v.counterexample.steps) for v in lazy.violations] == [1]


def test_refutation_among_the_expanded_states_of_a_bounded_search_counts() -> None:
    edges = ((0, 1, True), (1, 0, True), *((i, i + 1, True) for i in range(1, 9)))

    result = explore(Drawn(edges=edges), [_reaches(9)], bounds=Bounds(max_depth=5))

    assert (result.outcome, result.stopped_by) == (Outcome.VIOLATED, "max_depth")
    assert result.checkpoint is None


def test_frontier_of_a_bounded_search_is_no_end_of_a_run() -> None:
    result = explore(Counter(9), [_reaches(9)], bounds=Bounds(max_depth=5))

    assert result.outcome is Outcome.INCOMPLETE


def test_each_eventually_is_judged_by_itself() -> None:
    model = Drawn(edges=((0, 1, True), (1, 2, True)))
    first, second, third = _reaches(5), _reaches(2), Eventually[int]("late", lambda s: s == 1, bool)

    result = explore(model, [second, third, first], keep_going=True)

    assert [violation.rule for violation in result.violations] == ["reaches"]


def test_first_refuted_one_is_enough_unless_the_search_keeps_going() -> None:
    never = [Eventually[int](rule, lambda _: True, lambda _: False) for rule in ("a", "b")]

    assert [v.rule for v in explore(Counter(3), never).violations] == ["a"]
    assert [v.rule for v in explore(Counter(3), never, keep_going=True).violations] == ["a", "b"]


def test_eventually_that_raised_is_not_reported_twice() -> None:
    raising = Eventually[int]("raises", trigger=lambda s: 1 // (3 - s) >= 0, goal=lambda _: False)

    result = explore(Counter(9), [raising], keep_going=True)

    assert [violation.counterexample.last for violation in result.violations] == [3]


def test_long_graphs_need_no_recursion() -> None:
    (violation,) = explore(Counter(19_999, wraps=True), [_reaches(-1)]).violations

    assert violation.found == "steps 1 to 20000 repeat for ever without the goal"


States = frozenset[int]


@given(
    drawn(states=5, edges=12),
    st.frozensets(st.integers(0, 4)),
    st.frozensets(st.integers(0, 4)),
    st.sampled_from(["bfs", "dfs"]),
)
def test_verdict_and_lasso_agree_with_the_definition(
    model: Drawn, triggers: States, goals: States, order: str
) -> None:
    eventually = Eventually[int]("x", lambda i: i in triggers, lambda i: i in goals)
    way = _way_to_refutation(model, triggers, goals)

    result = explore(model, [eventually], order="dfs" if order == "dfs" else "bfs", keep_going=True)

    runs = [v.counterexample for v in result.violations if v.rule == "x"]
    assert [run.loop_from for run in runs] == ([] if way is None else [way])
    for run in runs:
        _assert_refutes(model, run, triggers, goals)


def _way_to_refutation(model: Drawn, triggers: States, goals: States) -> int | None:
    """The least number of steps, through a pending state, to where a run can stay forever.

    That is a state where nothing forces it on, or a round that refuses no class of actions.
    """
    ways: nx.DiGraph[tuple[int, bool]] = nx.DiGraph()
    ways.add_nodes_from((i, pending) for i in range(5) for pending in (False, True))
    for source, target, _ in model.edges:
        ways.add_edge((source, False), (target, False))
        if target in triggers - goals:
            ways.add_edge((source, False), (target, True))
        if target not in goals:
            ways.add_edge((source, True), (target, True))
    starts = [(i, False) for i in model.starts]
    starts += [(i, True) for i in model.starts if i in triggers - goals]
    lengths = [
        int(nx.shortest_path_length(ways, start, (i, True)))
        for start in starts
        for states in _subsets(range(5))
        if not goals.intersection(states)
        for i in _staying_states(model, states)
        if nx.has_path(ways, start, (i, True))
    ]
    return min(lengths, default=None)


def _subsets(states: range) -> list[tuple[int, ...]]:
    return list(chain.from_iterable(combinations(states, size) for size in range(1, 6)))


def _staying_states(model: Drawn, states: tuple[int, ...]) -> Iterable[int]:
    """Where a run has to come to, to be fairly in exactly these states forever."""
    if len(states) == 1 and not _possible(model, states[0]):
        return states
    inside = [e for e in model.edges if e[0] in states and e[1] in states]
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(states)
    graph.add_edges_from((source, target) for source, target, _ in inside)
    continues = bool(inside) and nx.is_strongly_connected(graph)
    return states if continues and not _refused(model, states, inside) else ()


def _possible(model: Drawn, state: int) -> set[int]:
    return {fair for source, _, fair in model.edges if source == state and fair}


def _refused(model: Drawn, states: Iterable[int], taken: Iterable[Edge]) -> set[int]:
    """The classes that are possible in each of the states and not among those taken."""
    always = set.intersection(*(_possible(model, state) for state in states))
    return always - {fair for _, _, fair in taken}


def _assert_refutes(
    model: Drawn, run: Counterexample[int], triggers: States, goals: States
) -> None:
    states = [run.initial, *(step.state for step in run.steps)]
    assert run.initial in model.starts
    assert run.loop_from is not None
    for before, step in zip(states, run.steps, strict=False):
        number = int(step.action.removeprefix("edge "))
        assert model.edges[number] == (before, step.state, step.fair)
    last_goal = max((i for i, state in enumerate(states) if state in goals), default=-1)
    assert any(state in triggers for state in states[last_goal + 1 : run.loop_from + 1])
    cycle = run.steps[run.loop_from :]
    assert states[-1] == states[run.loop_from]
    edges = [model.edges[int(step.action.removeprefix("edge "))] for step in cycle]
    assert not _refused(model, states[run.loop_from :], edges)
