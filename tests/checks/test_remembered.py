"""Remembered tokens and keys are those that the specification works out."""

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import checks.remembered
from checks.registry import POLICIES, claims_of
from checks.remembered import RememberedRequest, forget, remembering
from spec.core.requests import Prompt, Request
from tests.requests import request


def remembered(*given_: Any, **more: Any) -> RememberedRequest:
    return RememberedRequest.of(request(*given_, **more))


@pytest.fixture(params=["with numpy", "without numpy"])
def _either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without numpy":
        monkeypatch.setattr(checks.remembered, "np", None)
        monkeypatch.setattr(checks.remembered, "tensors", None)


@pytest.mark.usefixtures("_either_way")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("output", [None, (7, 8, 9)])
def test_a_remembering_context_answers_as_a_plain_one(
    policy: str, output: tuple[int, ...] | None
) -> None:
    """Also after other questions, and after a request was forgotten."""
    prompt = Prompt((("shared", 5), (3, 1, 4)), 8)
    asked = [
        request("a", 9, 20, output=output),
        Request(id="b", prompt=prompt, max_tokens=20, lora=3),
        request("c", 1, 2),
    ]
    claims = claims_of(policy)
    plain = claims.context_of(claims.config(block_size=4), asked)
    known = remembering(plain)

    for _ in range(2):
        for blocks in (1, 5, 3, 6):
            assert known.keys.of("a", blocks) == plain.keys.of("a", blocks)
            assert known.keys.of("b", blocks) == plain.keys.of("b", blocks)
        for id_ in "abc":
            own = plain.requests[id_]
            assert known.requests[id_].output_token(3) == own.output_token(3)
            assert known.requests[id_].output_tokens(9) == own.output_tokens(9)
            assert known.requests[id_].first_tokens(5) == own.first_tokens(5)
            assert known.requests[id_].first_tokens(17) == own.first_tokens(17)
            forget(known, id_)


def test_siblings_of_a_request_are_remembered_apart() -> None:
    claims = claims_of("vllm-v0")
    plain = claims.context_of(claims.config(block_size=4), [request("a", 9, 20, n=2)])
    known = remembering(plain)

    for name, sequence in plain.sequences.items():
        assert known.sequences[name].output_tokens(9) == sequence.output_tokens(9)
        assert known.keys.of(name, 4) == plain.keys.of(name, 4)


@given(
    st.integers(1, 70),
    st.integers(0, 90),
    st.none() | st.lists(st.integers(0, 9), min_size=1, max_size=40),
    st.data(),
)
def test_many_tokens_are_what_a_request_samples_if_each_of_them_is(
    prompt_len: int, length: int, output: list[int] | None, data: st.DataObject
) -> None:
    written = None if output is None else tuple(output)
    one, fresh = (remembered("a", prompt_len, 200, output=written) for _ in range(2))
    tokens = [fresh.output_token(place) for place in range(length + 1)]
    for place in data.draw(st.lists(st.integers(0, length), max_size=2)):
        one.output_token(place)  # known already, or partly

    assert one.samples(tokens[:-1])
    assert one.output_token(length) == tokens[-1]


def test_many_tokens_are_worked_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = request("a", 9, 100).output_tokens(20)
    monkeypatch.delattr(RememberedRequest, "_sample_next")

    assert remembered("a", 9, 100).samples(tokens)


@given(st.integers(0, 3), st.integers(1, 40), st.data())
def test_one_other_token_among_many_is_found_wherever_it_stands(
    known: int, length: int, data: st.DataObject
) -> None:
    one, fresh = remembered("a", 9, 100), remembered("a", 9, 100)
    tokens = [fresh.output_token(place) for place in range(known + length)]
    one.samples(tokens[:known])
    other = data.draw(st.integers(0, known + length - 1))
    wrong = [
        *tokens[:other],
        data.draw(st.sampled_from([-1, tokens[other] ^ 1])),
        *tokens[other + 1 :],
    ]

    assert not one.samples(wrong)
    assert one.samples(tokens)


def test_little_is_left_of_what_was_worked_out_of_a_request_that_has_left() -> None:
    requests = [remembered(str(index), 9, 50) for index in range(1_000)]
    tracemalloc.start()
    for served in requests:
        assert served.output_token(49) >= 0
        served.forget()
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert kept / len(requests) < 50  # bytes
