"""The state of a Spyre scheduler: immutable values, and the places of a request."""

import pickle

from attrs import evolve

from reference.core.block_pool import empty_pool
from reference.core.frozen_map import FrozenMap
from spec.core.blocks import BlockPool
from spec.spyre.config import SpyreConfig
from spec.spyre.state import Sequence, State, line_length
from spec.spyre.variants import Queue


def state() -> State:
    held, keys = FrozenMap({1: 1, 2: 1}), FrozenMap({1: b"one"})
    cached: FrozenMap[bytes, tuple[int, ...]] = FrozenMap({b"one": (1,)})
    return State(
        pool=BlockPool(size=3, free=(3,), references=held, keys=keys, cached=cached),
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


def test_admitted_are_all_that_hold_a_place_and_present_are_the_waiting_too() -> None:
    assert [row.id for row in state().admitted] == ["p", "d", "z"]
    assert [row.id for row in state().present] == ["w", "p", "d", "z"]


def test_prefill_that_ran_last_goes_before_the_batch_in_the_running_queue() -> None:
    def running(last_kind: str) -> list[str]:
        return [row.id for row in evolve(state(), last_kind=last_kind).running]

    assert running("prefill") == ["p", "d"]
    assert running("decode") == ["d", "p"]
    assert [row.id for row in evolve(state(), prefilling=None).running] == ["d"]


def test_state_is_idle_when_no_request_is_pending() -> None:
    idle = State(pool=empty_pool([1]), finished=frozenset({"f"}))

    assert idle.is_idle
    assert not evolve(idle, waiting=(Sequence("w", 4),)).is_idle
    assert not evolve(idle, paused=(Sequence("z", 4),)).is_idle


def test_the_next_is_chosen_by_width_from_as_many_as_may_be_overtaken_or_from_all() -> None:
    aligned = SpyreConfig(queue=Queue.ALIGNED, max_overtakes=3)

    assert line_length(aligned, 0, 10) == 4
    assert line_length(aligned, 2, 10) == 2
    assert line_length(SpyreConfig(max_overtakes=3), 0, 10) == 10
