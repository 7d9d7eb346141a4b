"""`queue = aligned`: overtakes, counted from the admissions and not from the state's cohort."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from reference.spyre.machine import SpyreMachine
from spec.spyre.variants import Queue
from tests.reference.scenes import arrived
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
