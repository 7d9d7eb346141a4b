"""The model with numpy is the model of the specification."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.core.tensors import cached_values, sampled_tokens
from spec.core.requests import MOST_TOKEN_ID, WORD, cached_value, sampled_token

tokens = st.lists(st.tuples(st.integers(0, MOST_TOKEN_ID), st.integers(0, 2**20)), min_size=1)


@given(tokens)
def test_words_are_those_of_the_specification(pairs: list[tuple[int, int]]) -> None:
    ids, positions = np.array(pairs).T

    assert cached_values(ids, positions).tolist() == [cached_value(*pair) for pair in pairs]


@given(st.lists(st.integers(0, WORD), min_size=1))
def test_sampled_tokens_are_those_of_the_specification(sums: list[int]) -> None:
    found = sampled_tokens(np.array(sums, dtype=np.uint64))

    assert found.tolist() == [sampled_token(total) for total in sums]
    assert found.dtype == np.int64
