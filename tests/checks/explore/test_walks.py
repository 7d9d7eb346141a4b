"""Random walks: repeatable, bounded, and never a proof."""

from collections.abc import Iterable

import pytest
from attrs import evolve

from checks.explore.bounds import Bounds
from checks.explore.model import Always, Eventually, Transition
from checks.explore.result import Outcome, Result
from checks.explore.search import explore
from tests.checks.explore.toys import CRITICAL, Counter, Drawn, Mutex, Processes

ALONE = Always[Processes](
    "alone", lambda state: "two are inside" if state.count(CRITICAL) > 1 else None
)


def _walk(model: Mutex, seed: int = 7, walks: int = 50) -> Result[Processes]:
    return explore(
        model, [ALONE], order="random", seed=seed, bounds=Bounds(max_depth=30, max_walks=walks)
    )


def test_walks_never_claim_that_something_holds() -> None:
    result = _walk(Mutex(2))

    assert (result.outcome, result.stopped_by) == (Outcome.INCOMPLETE, "max_walks")
    assert result.checkpoint is None


def test_states_and_edges_are_counted_once_however_often_they_are_met() -> None:
    """Fifty walks of thirty steps come through all 8 states of two processes."""
    result, whole = _walk(Mutex(2)), explore(Mutex(2), [])

    assert (result.states, result.transitions) == (whole.states, whole.transitions) == (8, 14)
    assert result.actions == whole.actions


@pytest.mark.parametrize("symmetric", [False, True])
def test_violation_is_found_with_the_walk_that_led_to_it(symmetric: bool) -> None:
    result = _walk(Mutex(3, locked=False, symmetric=symmetric))

    (violation,) = result.violations
    assert result.outcome is Outcome.VIOLATED
    run = violation.counterexample
    model = Mutex(3, locked=False)
    states = [run.initial, *(step.state for step in run.steps)]
    for before, step in zip(states, run.steps, strict=False):
        assert step in list(model.successors(before))
    assert run.last.count(CRITICAL) == 2


def test_same_seed_gives_the_same_result_and_another_one_another() -> None:
    def found(seed: int) -> Result[Processes]:
        result = _walk(Mutex(6), seed=seed, walks=3)
        return evolve(result, seconds=0, bytes_per_state=0)

    assert found(1) == found(1)
    assert found(1).states != found(2).states


def test_walk_ends_where_nothing_follows_and_at_its_length() -> None:
    bounds = Bounds(max_depth=4, max_walks=3)

    assert explore(Counter(2), [], order="random", bounds=bounds).states == 3
    assert explore(Counter(9), [], order="random", bounds=bounds).states == 5


def test_endless_run_is_found_on_walks_too() -> None:
    reaches = Eventually[int]("reaches", lambda state: state == 0, lambda state: state == 9)
    model = Drawn(edges=((0, 1, True), (1, 0, True)))

    result = explore(model, [reaches], order="random", bounds=Bounds(max_depth=9, max_walks=1))

    (violation,) = result.violations
    assert violation.found == "steps 1 to 2 repeat for ever without the goal"


@pytest.mark.parametrize(
    "bounds", [Bounds(max_depth=5), Bounds(max_walks=5), Bounds(max_depth=0, max_walks=5)]
)
def test_walks_without_end_are_refused(bounds: Bounds) -> None:
    with pytest.raises(ValueError, match="random walks need max_depth, and max_walks or max_sec"):
        explore(Counter(9), [], order="random", bounds=bounds)


def test_other_bounds_end_walks() -> None:
    timed = Bounds(max_depth=5, max_seconds=0)
    small = Bounds(max_depth=30, max_walks=50, max_states=3)

    assert explore(Counter(9), [], order="random", bounds=timed).stopped_by == "max_seconds"
    assert explore(Counter(9), [], order="random", bounds=small).stopped_by == "max_states"


def test_walk_ends_at_a_state_that_the_machine_cannot_name() -> None:
    asked = set()

    class Broken(Counter):
        def canonical(self, state: int) -> int:
            return state if state != 3 else 1 // 0

        def successors(self, state: int) -> Iterable[Transition[int]]:
            asked.add(state)
            return super().successors(state)

    bounds = Bounds(max_depth=9, max_walks=4)
    result = explore(Broken(9), [], order="random", bounds=bounds, keep_going=True)

    (violation,) = result.violations
    assert violation.rule == "machine-error"
    assert [step.state for step in violation.counterexample.steps] == [1, 2, 3]
    assert result.stopped_by == "max_walks"
    assert asked == {0, 1, 2}
