"""Orders of the vLLM V1 machine's queues, and which newcomers are padded with drafts."""

from typing import Any

import pytest

from spec.vllm_v1.config import Connector, Scheduling
from spec.vllm_v1.records import State
from tests.reference.scenes import arrived, of_parts
from tests.reference.vllm_v1.scenes import accepting, ids, machine
from tests.requests import request


def order(state: State, place: str) -> list[str]:
    """The ids of a queue from its head on."""
    return [row.id for row in getattr(state, place)]


# --- queues -------------------------------------------------------------------------------------


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


def test_later_arrival_of_equal_priority_is_behind_also_when_a_request_has_finished() -> None:
    scene = machine(
        *(request(name, 4, 1) for name in "abc"), scheduling=Scheduling.PRIORITY, max_num_seqs=1
    )
    state = scene.step(arrived(scene, "a", "b")).after
    assert ids(state) == {"waiting": ["b"], "finished": ["a"]}

    assert order(scene.arrive(state, "c"), "waiting") == ["b", "c"]


# --- padding ------------------------------------------------------------------------------------


def scheduled_for_the_newcomer(*earlier: str, **config: Any) -> int:
    """The scheduled tokens of a 1-token prompt beside these requests, after their first step."""
    prompts = {"decoding": 4, "in chunks": 30}
    scene = machine(
        *(request(name, prompts[name]) for name in earlier),
        request("new", 1),
        num_speculative_tokens=3,
        long_prefill_token_threshold=8,
        **config,
    )
    state = scene.step(arrived(scene, *earlier)).after if earlier else scene.initial()
    return scene.step(scene.arrive(state, "new"), accepting(3)).scheduled["new"]


def test_newcomer_is_padded_beside_requests_that_all_decode_and_in_no_other_case() -> None:
    assert scheduled_for_the_newcomer("decoding") == 4
    assert scheduled_for_the_newcomer() == 1
    assert scheduled_for_the_newcomer("in chunks") == 1
    assert scheduled_for_the_newcomer("decoding", "in chunks") == 1


@pytest.mark.parametrize(("max_model_len", "scheduled"), [(12, 4), (11, None)])
def test_newcomer_is_padded_up_to_the_model_length_and_refused_beyond(
    max_model_len: int, scheduled: int | None
) -> None:
    """Of 9 tokens 8 are cached; one and 3 drafts end at the 12th position."""
    scene = machine(
        of_parts("first", ("same", 9), max_tokens=2),
        of_parts("new", ("same", 9), max_tokens=2),
        prefix_caching=True,
        num_speculative_tokens=3,
        max_model_len=max_model_len,
    )
    state = scene.step(arrived(scene, "first")).after

    step = scene.step(scene.arrive(state, "new"), accepting(0))

    assert step.scheduled.get("new") == scheduled
    assert step.refusal == (None if scheduled else "V1-SPC-5")
