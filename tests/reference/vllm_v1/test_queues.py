"""The order of the skipped queue of the vLLM V1 machine."""

from spec.vllm_v1.config import Connector
from spec.vllm_v1.records import State
from tests.reference.scenes import arrived
from tests.reference.vllm_v1.scenes import machine
from tests.requests import request


def order(state: State, place: str) -> list[str]:
    """The ids of a queue from its head on."""
    return [row.id for row in getattr(state, place)]


def test_a_loading_request_stays_ahead_of_an_unexamined_request() -> None:
    """The first still loads, the second takes the only slot, the third is refused for it."""
    scene = machine(
        *(request(name, 8) for name in "abc"),
        external=dict.fromkeys("abc", 8),
        connector=Connector.ASYNC,
        max_num_seqs=1,
    )
    state = scene.step(arrived(scene)).after
    state = scene.end_load(scene.end_load(state, "b"), "c")

    step = scene.step(state)

    assert list(step.scheduled) == ["b"]
    assert order(step.after, "skipped") == ["a", "c"]
