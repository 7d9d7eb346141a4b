"""`queue = aligned`: who is admitted next, what the cohort is, and that no request is overtaken
more often than it may be: counted here from what was admitted, not from the state's number.
"""

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from reference.spyre import transitions
from reference.spyre.machine import SpyreMachine
from spec.spyre.state import State
from spec.spyre.variants import Queue
from tests.reference.scenes import arrived, steps_to_the_end
from tests.reference.spyre.scenes import machine
from tests.requests import request

# A slot's share of the limit is 2 tokens, and a chunk 2 more: rows up to 4 are alike.
NARROW: dict[str, Any] = {
    "block_size": 2,
    "chunk_size": 2,
    "max_num_seqs": 16,
    "max_batch_tkv_limit": 32,
    "queue": Queue.ALIGNED,
}


def alone(*sizes: tuple[int, int], **config: Any) -> SpyreMachine:
    """Requests 0, 1, … with these prompt lengths and maximum outputs, aligned."""
    requests = (request(str(index), *size) for index, size in enumerate(sizes))
    return machine(*requests, **NARROW | config)


def order(scene: SpyreMachine, state: State | None = None) -> str:
    """The requests as they were admitted."""
    steps = steps_to_the_end(scene, arrived(scene) if state is None else state)
    return "".join(event.id for step in steps for event in step.happened("admit"))


def test_narrowest_row_goes_first_and_equal_ones_as_they_came() -> None:
    scene = alone((5, 4), (2, 3), (4, 4), (3, 2))

    assert order(scene) == "1320"


def test_rows_up_to_a_share_and_a_chunk_are_alike() -> None:
    assert order(alone((3, 1), (1, 1), (4, 1), (1, 2))) == "0132"


@pytest.mark.parametrize(("most", "admitted"), [(1, "10234"), (2, "21043"), (9, "42310")])
def test_cohort_is_served_before_any_behind_it(most: int, admitted: str) -> None:
    scene = alone((7, 2), (6, 2), (4, 2), (5, 2), (3, 2), max_overtakes=most)

    assert order(scene) == admitted


def test_newcomers_wait_for_the_next_cohort() -> None:
    scene = alone((7, 2), (6, 2), (2, 3))
    begun = scene.step(arrived(scene, "0", "1")).after

    assert (begun.cohort, [request.id for request in begun.waiting]) == (1, ["0"])
    assert order(scene, scene.arrive(begun, "2")) == "02"


def test_request_that_goes_away_leaves_the_cohort() -> None:
    scene = alone((3, 4), (7, 2), (6, 2), (2, 3))
    begun = scene.step(arrived(scene, "0", "1", "2")).after

    assert scene.abort(begun, "1").cohort == 1
    assert scene.abort(scene.arrive(begun, "3"), "3").cohort == 2
    assert scene.abort(begun, "0").cohort == 2


def test_preempted_request_belongs_to_the_cohort_under_way() -> None:
    scene = alone((2, 3), (7, 2), reservation=False)
    begun = scene.step(arrived(scene)).after
    between = evolve(begun, waiting=(), cohort=0)

    for state, cohort in ((begun, 2), (between, 0)):
        preempted, _ = transitions.preempt(scene.ctx, state, state.decoding[0])
        assert (preempted.waiting[0].id, preempted.cohort) == ("0", cohort)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4)), min_size=2, max_size=9),
    most=st.integers(1, 4),
    at_once=st.integers(1, 9),
)
def test_no_request_is_overtaken_more_often_than_it_may_be(
    sizes: list[tuple[int, int]], most: int, at_once: int
) -> None:
    scene = alone(*sizes, max_overtakes=most)
    names = [str(index) for index in range(len(sizes))]
    first, later = names[:at_once], names[at_once:]
    state, admitted = arrived(scene, *first), list[str]()
    while later or not state.is_idle:
        step = scene.step(state)
        admitted += [event.id for event in step.happened("admit")]
        state = step.after if not later else scene.arrive(step.after, later.pop(0))

    assert sorted(admitted) == sorted(names)
    for place, name in enumerate(admitted):
        overtaken = [other for other in admitted[:place] if int(other) > int(name)]
        assert len(overtaken) <= most
