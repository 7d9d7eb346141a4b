"""Maps, sets and orders that share their parts: equal to what a dict, a set or a tuple would be."""

import copy
import pickle
from collections.abc import Mapping
from random import Random
from typing import Any
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.sharing import DerivedMap, DerivedSet, SharedOrder

# --- maps made from others ------------------------------------------------------------------------

MANY = dict.fromkeys(range(200), 0)  # enough that a few changes are kept apart from them
changes = st.dictionaries(st.integers(190, 209), st.none() | st.integers(1, 9), max_size=3)


def with_changes(values: dict[int, int], made: dict[int, int | None]) -> dict[int, int]:
    """The dict after the changes, made one by one."""
    values = dict(values)
    for key, value in made.items():
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
    return values


@given(st.lists(changes, max_size=8))
def test_derived_maps_are_what_a_dict_is_after_the_same_changes(
    history: list[dict[int, int | None]],
) -> None:
    derived: list[Mapping[int, int]] = [DerivedMap.of(MANY, {})]
    plain = [MANY]
    for made in history:
        derived.append(DerivedMap.of(derived[-1], made))
        plain.append(with_changes(plain[-1], made))

    for version, values in zip(derived, plain, strict=True):
        assert list(version.items()) == list(values.items())
        assert len(version) == len(values)
        assert [version.get(key) for key in range(210)] == [values.get(key) for key in range(210)]
        assert [key in version for key in range(210)] == [key in values for key in range(210)]
        assert version == values == version
        assert hash(version) == hash(frozenset(values.items()))
        assert repr(version) == repr(values)
        assert (version == derived[0]) == (values == MANY)


def test_a_derived_map_holds_only_what_differs_from_its_base() -> None:
    """What is kept of a thousand versions is far less than a thousand maps."""
    versions = [DerivedMap.of(MANY, {})]
    for number in range(1_000):
        assert len(versions[-1]) == 200  # it is looked at, and so worked out
        versions.append(DerivedMap.of(versions[-1], {number % 200: number + 1}))
    assert len(versions[-1]) == 200

    bases = {id(version._base) for version in versions}

    assert len(bases) < len(versions) / 5
    assert (
        max(len(version._over) for version in versions) <= 40
    )  # 40 * 40 is 8 for each of the base
    assert versions[-1] == {key: key + 801 for key in range(200)}


@pytest.mark.parametrize("seed", range(6))
def test_derived_maps_are_that_dict_over_long_histories_whichever_is_looked_at(seed: int) -> None:
    """So long that what differs goes into a smaller base again and again, and into the large."""
    draw = Random(seed)
    keys, looked_at = range(draw.choice((60, 260))), draw.choice((0.02, 0.3, 1.0))
    derived: list[Mapping[int, int]] = [DerivedMap.of(MANY, {})]
    plain = [MANY]
    for _ in range(600):
        made = {draw.choice(keys): draw.choice((None, *range(1, 9))) for _ in range(4)}
        derived.append(DerivedMap.of(derived[-1], made))
        plain.append(with_changes(plain[-1], made))
        if draw.random() < looked_at:
            assert list(derived[-1].items()) == list(plain[-1].items())

    for place in draw.sample(range(601), 601):
        version, values = derived[place], plain[place]
        assert [version.get(key) for key in keys] == [values.get(key) for key in keys]
        assert [key in version for key in keys] == [key in values for key in keys]
        assert (len(version), list(version.items())) == (len(values), list(values.items()))


def test_a_large_base_is_shared_through_a_smaller_one() -> None:
    """Where each version copied what differs from the large one, that came to 282."""
    versions = [DerivedMap.of(dict.fromkeys(range(10_000), 0), {})]
    for number in range(1_000):
        assert len(versions[-1]) == 10_000
        versions.append(DerivedMap.of(versions[-1], {number: 1}))
    assert len(versions[-1]) == 10_000

    large = {
        id(base._base) for version in versions if isinstance(base := version._base, DerivedMap)
    }

    assert len(large) == 1
    assert max(len(version._over) for version in versions) < 100


def test_derived_maps_without_a_look_do_not_pile_up() -> None:
    """What some thousands are to be made of is kept, and no more."""
    kept = [DerivedMap.of(dict[int, int](), {0: 0})]
    made = [ref(kept[-1])]
    for number in range(20_000):
        kept[:] = [DerivedMap.of(kept[-1], {number % 50: number})]
        made.append(ref(kept[-1]))

    assert 0 < sum(version() is not None for version in made) <= 4_000
    assert kept[-1] == {key: 19_950 + key for key in range(50)}


def test_a_derived_map_refuses_to_change() -> None:
    derived: Any = DerivedMap.of(MANY, {1: 1})

    with pytest.raises(TypeError, match="support item assignment"):
        derived[1] = 2
    with pytest.raises(TypeError, match="support item deletion"):
        del derived[1]


def test_a_derived_map_comes_back_from_a_pickle_and_from_a_copy_as_a_map_of_its_own() -> None:
    derived = DerivedMap.of(MANY, {7: None, 300: 1})

    for again in (pickle.loads(pickle.dumps(derived)), copy.deepcopy(derived)):
        assert type(again) is DerivedMap
        assert again == derived
        assert hash(again) == hash(derived)


# --- sets made from others ------------------------------------------------------------------------

few = st.frozensets(st.integers(0, 60), max_size=4)


@given(few, st.lists(few, max_size=20), few)
def test_derived_sets_are_what_a_frozenset_is_with_the_same_items(
    first: frozenset[int], history: list[frozenset[int]], other: frozenset[int]
) -> None:
    derived, plain = [DerivedSet.of(first, ())], [first]
    for more in history:
        derived.append(DerivedSet.of(derived[-1], more))
        plain.append(plain[-1] | more)

    for version, items in zip(derived, plain, strict=True):
        assert sorted(version) == sorted(items)
        assert len(version) == len(items)
        assert [item in version for item in range(61)] == [item in items for item in range(61)]
        assert version == items == version
        assert (version == derived[0]) == (items == first)
        assert hash(version) == hash(items)
        assert version - other == items - other
        assert other - version == other - items
        assert (version | other, version & other) == (items | other, items & other)
        assert (other | version, other & version) == (items | other, items & other)
        assert (version <= other, other <= version) == (items <= other, other <= items)
        assert eval(repr(version)) == items
        assert [version - earlier for earlier in derived] == [items - earlier for earlier in plain]


def test_a_derived_set_holds_only_what_its_base_lacks() -> None:
    """What is kept of a thousand versions is far less than a thousand sets."""
    versions = [DerivedSet.of(frozenset[int](), ())]
    for number in range(1_000):
        versions.append(DerivedSet.of(versions[-1], [number]))

    bases = {id(version._base) for version in versions}

    assert len(bases) < len(versions) / 10
    assert max(len(version._over) for version in versions) < 100
    assert versions[-1] - versions[-4] == {997, 998, 999}


def test_a_derived_set_comes_back_from_a_pickle_and_from_a_copy_as_a_frozenset() -> None:
    derived = DerivedSet.of(DerivedSet.of(frozenset(range(99)), [200]), [300])

    for again in (pickle.loads(pickle.dumps(derived)), copy.deepcopy(derived)):
        assert type(again) is frozenset
        assert again == derived


# --- orders of blocks, and of requests that wait --------------------------------------------------

runs = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple), max_size=4)


ends = st.none() | st.integers(-9, 9)


@given(runs, runs, st.builds(slice, ends, ends, st.none() | st.sampled_from([1, 2, -1])))
def test_an_order_is_the_tuple_of_its_items_however_it_is_cut_into_runs(
    cut: list[tuple[int, ...]], other: list[tuple[int, ...]], part: slice
) -> None:
    order, blocks = SharedOrder(tuple(cut)), sum(cut, ())
    again = SharedOrder(tuple((block,) for block in blocks))

    assert [*order] == [*blocks]
    assert len(order) == len(blocks)
    assert order == blocks == order == again
    assert hash(order) == hash(blocks) == hash(again)
    assert repr(order) == repr(blocks)
    assert order[part] == blocks[part]
    assert [block in order for block in range(10)] == [block in blocks for block in range(10)]
    assert (order == SharedOrder(tuple(other))) == (blocks == sum(other, ()))
    assert [order[place] for place in range(-len(blocks), len(blocks))] == [*blocks, *blocks]
    for place in (-len(blocks) - 1, len(blocks)):
        with pytest.raises(IndexError):
            order[place]


def test_an_order_is_no_list_and_comes_back_from_a_pickle_as_a_tuple() -> None:
    order = SharedOrder(((1, 2), (3,)))

    assert order != [1, 2, 3]
    assert type(pickle.loads(pickle.dumps(order))) is tuple
    assert pickle.loads(pickle.dumps(order)) == order
