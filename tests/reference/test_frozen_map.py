"""The map that never changes: equal to what a dict would be."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference.core.frozen_map import FrozenMap, updated, without

maps = st.dictionaries(st.integers(0, 5), st.integers(0, 5), max_size=4)


def change_key(values: Any) -> None:
    values[1] = 2


def delete_key(values: Any) -> None:
    del values[1]


def merge(values: Any) -> None:
    values |= {1: 2}


MUTATIONS: list[Callable[[Any], object]] = [
    change_key,
    delete_key,
    merge,
    lambda values: values.clear(),
    lambda values: values.pop(1),
    lambda values: values.popitem(),
    lambda values: values.setdefault(1, 2),
    lambda values: values.update({1: 2}),
]


@pytest.mark.parametrize("mutate", MUTATIONS)
def test_map_refuses_to_change(mutate: Callable[[Any], object]) -> None:
    values = FrozenMap({1: 1})

    with pytest.raises(TypeError, match="a FrozenMap never changes"):
        mutate(values)

    assert values == {1: 1}


def test_every_way_to_change_a_dict_is_refused() -> None:
    """Names that a dict has and an unchangeable mapping would not have."""
    changing = {"__setitem__", "__delitem__", "__ior__"}
    changing |= {"clear", "pop", "popitem", "setdefault", "update"}

    assert all(getattr(FrozenMap, name) is not getattr(dict, name) for name in changing)
    assert len(MUTATIONS) == len(changing)


@given(maps, maps)
def test_equal_maps_have_equal_hashes_whatever_their_order(
    values: dict[int, int], other: dict[int, int]
) -> None:
    frozen, again = FrozenMap(values), FrozenMap(reversed(values.items()))

    assert frozen == again == values
    assert hash(frozen) == hash(again)
    assert (frozen == FrozenMap(other)) == (values == other)


@given(maps, maps)
def test_copies_differ_and_the_map_stays(values: dict[int, int], changes: dict[int, int]) -> None:
    frozen = FrozenMap(values)

    changed, smaller = updated(frozen, changes), without(frozen, *changes)

    assert changed == values | changes
    assert smaller == {key: value for key, value in values.items() if key not in changes}
    assert type(changed) is type(smaller) is FrozenMap
    assert frozen == values


@given(maps)
def test_map_comes_back_from_a_pickle_and_from_a_copy(values: dict[int, int]) -> None:
    frozen = FrozenMap(values)
    hash(frozen)

    for again in (pickle.loads(pickle.dumps(frozen)), copy.deepcopy(frozen)):
        assert type(again) is FrozenMap
        assert again == frozen
        assert hash(again) == hash(frozen)
