"""What can be seen of a scheduler: values that never change, and the places of a request."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve
from attrs.exceptions import FrozenInstanceError
from hypothesis import given
from hypothesis import strategies as st

from spec.state import BlockPool, FrozenMap, Sequence, State

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

    with pytest.raises(TypeError, match="never changes; use set\\(\\) or without\\(\\) for a copy"):
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
    one: dict[int, int], other: dict[int, int]
) -> None:
    frozen, again = FrozenMap(one), FrozenMap(reversed(one.items()))

    assert frozen == again == one
    assert hash(frozen) == hash(again)
    assert (frozen == FrozenMap(other)) == (one == other)


@given(maps, maps)
def test_copies_differ_and_the_map_stays(one: dict[int, int], changes: dict[int, int]) -> None:
    frozen = FrozenMap(one)

    changed, smaller = frozen.set(changes), frozen.without(*changes)

    assert changed == one | changes
    assert smaller == {key: value for key, value in one.items() if key not in changes}
    assert type(changed) is type(smaller) is FrozenMap
    assert frozen == one


@given(maps)
def test_map_comes_back_from_a_pickle_and_from_a_copy(values: dict[int, int]) -> None:
    frozen = FrozenMap(values)
    hash(frozen)

    for again in (pickle.loads(pickle.dumps(frozen)), copy.deepcopy(frozen)):
        assert type(again) is FrozenMap
        assert again == frozen
        assert hash(again) == hash(frozen)


def state() -> State:
    pool = BlockPool(
        size=3,
        free=(3,),
        references=FrozenMap({1: 1, 2: 1}),
        keys=FrozenMap({1: b"one"}),
        cached=FrozenMap({b"one": (1,)}),
    )
    return State(
        pool=pool,
        waiting=(Sequence("w", 4),),
        prefilling=Sequence("p", 4, blocks=(2,)),
        decoding=(Sequence("d", 4, computed=5, left_padding=4, blocks=(1,)),),
        paused=(Sequence("z", 4),),
        finished=frozenset({"f"}),
    )


def test_states_are_compared_and_hashed_by_what_they_hold() -> None:
    assert state() == state()
    assert hash(state()) == hash(state())
    assert state() != evolve(state(), last_tkv=1)
    assert state() != evolve(state(), pool=evolve(state().pool, free=()))
    assert len({state(), state(), evolve(state(), waiting=())}) == 2


def test_state_comes_back_from_a_pickle() -> None:
    before = state()
    hash(before)  # the cached hash of one process means nothing in the next

    assert pickle.loads(pickle.dumps(before)) == before
    assert hash(pickle.loads(pickle.dumps(before))) == hash(before)


def test_state_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        state().waiting = ()  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        state().pool.free = ()  # type: ignore[misc]


def test_admitted_are_all_that_hold_a_place_and_present_are_the_waiting_too() -> None:
    assert [one.id for one in state().admitted] == ["p", "d", "z"]
    assert [one.id for one in state().present] == ["w", "p", "d", "z"]


def test_prefill_that_ran_last_goes_before_the_batch_in_the_running_queue() -> None:
    def running(last_kind: str) -> list[str]:
        return [one.id for one in evolve(state(), last_kind=last_kind).running]

    assert running("prefill") == ["p", "d"]
    assert running("decode") == ["d", "p"]
    assert [one.id for one in evolve(state(), prefilling=None).running] == ["d"]


def test_state_is_idle_when_nobody_is_pending() -> None:
    nobody = State(pool=BlockPool(size=1, free=(1,)), finished=frozenset({"f"}))

    assert nobody.is_idle
    assert not evolve(nobody, waiting=(Sequence("w", 4),)).is_idle
    assert not evolve(nobody, paused=(Sequence("z", 4),)).is_idle


def test_tkv_is_left_padding_and_computed_tokens() -> None:
    assert state().decoding[0].tkv == 4 + 5
