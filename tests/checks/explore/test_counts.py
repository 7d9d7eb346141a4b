"""Exact numbers of states, edges and depth, compared with numbers worked out by hand."""

import sys
from itertools import pairwise

import pytest
from hypothesis import given

from checks.explore.bounds import Bounds
from checks.explore.examine import DEADLOCK
from checks.explore.memory import deep_bytes
from checks.explore.model import Always, Sightings, Transition, Witness
from checks.explore.result import Outcome, Progress
from checks.explore.search import explore
from tests.checks.explore.toys import (
    CRITICAL,
    TRYING,
    Counter,
    Drawn,
    Mutex,
    Philosophers,
    Processes,
    Queue,
    drawn,
)


def test_counter_has_a_state_more_than_edges() -> None:
    result = explore(Counter(9), [])

    assert result.outcome is Outcome.HOLDS
    assert result.stopped_by is None
    assert (result.states, result.transitions, result.depth) == (10, 9, 9)
    assert (result.deadlocks, result.peak_queue) == (0, 1)
    assert result.checkpoint is None


def test_mutex_of_three() -> None:
    """2^3 states with none inside, 3 * 2^2 with one; the deepest has one inside, two trying."""
    result = explore(Mutex(3), [])

    assert (result.states, result.transitions, result.depth) == (8 + 12, 24 + 24, 4)
    # None inside: each of the 3 processes moves, half of the time from idle. One inside: it
    # leaves, and each of the two others tries in half of the states.
    assert result.actions == {"enter": 12, "leave": 12, "try": 12 + 12}


def test_symmetry_leaves_one_state_of_each_kind() -> None:
    """The number of trying processes, 0 to 3 with none inside and 0 to 2 with one."""
    result = explore(Mutex(3, symmetric=True), [])

    assert (result.states, result.transitions, result.depth) == (4 + 3, 4 * 3 + (3 + 2 + 1), 4)


@pytest.mark.parametrize("seats", [3, 4, 5])
def test_symmetry_keeps_verdict_depth_and_length_of_the_counterexample(seats: int) -> None:
    plain = explore(Philosophers(seats), [], keep_going=True)
    reduced = explore(Philosophers(seats, symmetric=True), [], keep_going=True)

    assert plain.states / seats <= reduced.states < plain.states
    assert plain.depth == reduced.depth
    for result in (plain, reduced):
        (deadlock,) = result.violations
        assert deadlock.rule == DEADLOCK
        assert len(deadlock.counterexample.steps) == seats
        assert deadlock.counterexample.last == (1,) * seats


def test_action_kinds_are_first_words_without_punctuation() -> None:
    result = explore(Counter(2, wraps=True), [])

    assert result.actions == {"inc": 2, "wrap": 1}


@pytest.mark.parametrize("symmetric", [False, True])
def test_depth_first_finds_the_same_states_and_edges(symmetric: bool) -> None:
    model = Mutex(4, symmetric=symmetric)

    broad, deep = explore(model, []), explore(model, [], order="dfs")

    assert (deep.states, deep.transitions) == (broad.states, broad.transitions)
    assert (deep.actions, deep.outcome) == (broad.actions, broad.outcome)
    assert deep.depth >= broad.depth


def test_depth_first_follows_the_newest_state_and_keeps_the_least_depth_of_a_witness() -> None:
    """From 0 to 7 in two steps by way of 1, or in four by way of the newer state 2."""
    pairs = ((0, 1), (1, 7), (0, 2), (2, 5), (5, 6), (6, 7))
    model = Drawn(edges=tuple((source, target, True) for source, target in pairs))
    arrived = Witness[int]("arrived", lambda _, step: step.state == 7)

    broad = explore(model, [], [arrived])
    deep = explore(model, [], [arrived], order="dfs")

    assert (broad.depth, deep.depth) == (3, 4)
    assert broad.witnesses == deep.witnesses == {"arrived": Sightings(2, 2)}


def test_peak_queue_of_two_processes() -> None:
    """00; 10 01; 01 20 11; 20 11 02; 11 02 21; 02 21 12; 21 12; 12."""
    assert explore(Mutex(2), []).peak_queue == 3


@given(drawn())
def test_counts_agree_with_networkx(model: Drawn) -> None:
    graph = model.graph()

    result = explore(model, [], keep_going=True)

    assert result.states == len(graph)
    assert result.transitions == sum(source in graph for source, _, _ in model.edges)
    assert result.deadlocks == sum(not graph.out_degree(i) and i in model.stuck for i in graph)


def _entered(state: Processes, transition: Transition[Processes]) -> bool:
    return CRITICAL not in state and CRITICAL in transition.state


def test_witness_counts_edges_and_the_least_depth() -> None:
    crowd = Witness[Processes]("crowd", lambda state, _: state == (TRYING,) * 3)
    entered = Witness("entered", _entered)

    result = explore(Mutex(3), [], [crowd, entered])

    assert result.witnesses == {"crowd": Sightings(3, 4), "entered": Sightings(12, 2)}


def test_missing_witness_is_counted_and_leaves_the_outcome_to_the_caller() -> None:
    never = Witness[Processes]("two inside", lambda _, t: t.state.count(CRITICAL) == 2)

    result = explore(Mutex(3), [], [never, Witness("entered", _entered)])

    assert result.witnesses["two inside"] == Sightings(0, None)
    assert result.outcome is Outcome.HOLDS


@pytest.mark.parametrize(
    ("bounds", "reason", "states"),
    [
        (Bounds(max_states=4), "max_states", 5),
        (Bounds(max_depth=4), "max_depth", 5),
        (Bounds(max_seconds=0), "max_seconds", 1),
        (Bounds(max_memory_bytes=1), "max_memory_bytes", 1),
    ],
)
def test_met_bound_makes_the_answer_incomplete(bounds: Bounds, reason: str, states: int) -> None:
    result = explore(Counter(9), [], bounds=bounds)

    assert result.outcome is Outcome.INCOMPLETE
    assert (result.stopped_by, result.states) == (reason, states)
    assert result.checkpoint is not None


def test_bounds_that_are_not_met_change_nothing() -> None:
    wide = Bounds(max_states=10, max_depth=10, max_seconds=60, max_memory_bytes=2**40)

    assert explore(Counter(9), [], bounds=wide).outcome is Outcome.HOLDS


def test_states_at_the_depth_bound_are_checked() -> None:
    small = Always[int]("small", lambda state: f"{state} is not below 4" if state >= 4 else None)

    assert explore(Counter(9), [small], bounds=Bounds(max_depth=4)).outcome is Outcome.VIOLATED
    assert explore(Counter(9), [small], bounds=Bounds(max_depth=3)).outcome is Outcome.INCOMPLETE


@pytest.mark.parametrize("field", ["max_states", "max_depth", "max_walks", "max_seconds"])
def test_negative_bound_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"'{field}' must be >= "):
        Bounds(**{field: -1})


def test_progress_says_how_far_it_is_at_most_four_times_a_second() -> None:
    shown: list[Progress] = []

    result = explore(Queue(arrivals=60, room=60), [], progress=shown.append)

    assert 1 <= len(shown) <= 1 + 4 * result.seconds
    assert (shown[0].states, shown[0].transitions, shown[0].queue) == (1, 0, 1)
    assert shown[0].states_per_second > 0
    assert all(a.states <= b.states <= result.states for a, b in pairwise(shown))


def test_model_without_initial_state_is_refused() -> None:
    with pytest.raises(ValueError, match="no initial state, so that everything would hold"):
        explore(Drawn(edges=(), starts=()), [])


def test_unknown_order_is_refused() -> None:
    with pytest.raises(ValueError, match="order: found 'best'; allowed: bfs, dfs, random"):
        explore(Counter(1), [], order="best")  # type: ignore[arg-type]


def test_shared_objects_are_measured_once() -> None:
    shared = (1000, 2000)
    alone = deep_bytes([shared])

    assert alone == sys.getsizeof(shared) + 2 * sys.getsizeof(1000)
    assert deep_bytes([(shared,), (shared,)]) == alone + 2 * sys.getsizeof((shared,))


@pytest.mark.parametrize("limit", [100, 5000])
def test_bytes_per_state_is_what_a_counter_needs(limit: int) -> None:
    """An int as key and one as index, three array items of 4 bytes, and a place in the dict."""
    result = explore(Counter(limit), [])

    assert 2 * 28 + 3 * 4 + 24 <= result.bytes_per_state <= 2 * 32 + 3 * 8 + 110
