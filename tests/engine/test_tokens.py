"""Parts of prompts as arrays are the tokens that the specification gives them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.tensors import prompt_tokens
from spec.core.requests import Prompt

parts = st.one_of(
    st.tuples(st.sampled_from(["system", "user", "ä"]), st.integers(0, 9)),
    st.lists(st.integers(0, 2**31 - 1), max_size=9).map(tuple),
)


@given(st.lists(parts, max_size=4), st.integers(0, 40), st.integers(0, 40))
def test_any_part_of_a_prompt_is_that_part_of_its_tokens(
    drawn: list[tuple[str, int] | tuple[int, ...]], start: int, length: int
) -> None:
    drawn = [("first", 3), *drawn]
    count = sum(part[1] if isinstance(part[0], str) else len(part) for part in drawn if part)
    prompt = Prompt(tuple(drawn), count)

    found = prompt_tokens(prompt, start, start + length)

    assert found.tolist() == list(prompt.tokens())[start : start + length]


@pytest.mark.parametrize("length", [1, 511, 100_000])
def test_streams_are_the_same_far_from_their_beginning(length: int) -> None:
    prompt = Prompt.of_stream("far", length)

    assert prompt_tokens(prompt, length - 1, length).tolist() == [prompt.tokens()[-1]]


def test_end_beyond_the_prompt_is_cut() -> None:
    assert prompt_tokens(Prompt.of_tokens([5, 6]), 1, 9).tolist() == [6]
    assert prompt_tokens(Prompt.of_tokens([5, 6]), 2, 9).tolist() == []
