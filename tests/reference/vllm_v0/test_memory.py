"""The blocks of a device by example: computed blocks and forgotten contents."""

from attrs import evolve

from reference.core.block_pool import new_pool, register
from reference.core.frozen_map import FrozenMap
from reference.vllm_v0.memory import Memory, compute, forget, give_back, hand_out
from spec.core.requests import BlockKey


def key(depth: int, content: bytes = b"") -> BlockKey:
    """The content of a block so deep in its sequence."""
    return depth.to_bytes(4, "big") + bytes(4) + content


FIRST, SECOND, THIRD = key(1), key(2), key(3)


def held() -> Memory:
    """Six blocks, of which 1 to 4 are held, each once; block 4 is known for what is first."""
    memory, _ = hand_out(Memory(new_pool(6)), 4)
    return evolve(memory, pool=register(memory.pool, [4], [FIRST]))


def test_full_blocks_are_known_for_their_contents_and_count_as_computed() -> None:
    computed = compute(held(), [1, 2], [SECOND, THIRD])

    assert dict(computed.pool.keys) == {4: FIRST, 1: SECOND, 2: THIRD}
    assert dict(computed.pool.cached) == {FIRST: (4,), SECOND: (1,), THIRD: (2,)}
    assert computed.computed == {1, 2}


def test_a_block_is_not_known_for_what_another_is_known_for_and_does_not_count() -> None:
    computed = compute(held(), [1, 2], [FIRST, SECOND])

    assert dict(computed.pool.cached) == {FIRST: (4,), SECOND: (2,)}
    assert computed.computed == {2}


def test_a_block_that_is_known_already_is_known_for_that_and_counts_from_now_on() -> None:
    computed = compute(held(), [4, 1], [FIRST, SECOND])
    again = compute(computed, [4, 1], [FIRST, key(2, b"other")])

    assert computed.computed == again.computed == {4, 1}
    assert dict(again.pool.keys) == {4: FIRST, 1: SECOND}


def test_a_held_block_is_forgotten_where_it_is() -> None:
    memory = compute(held(), [1], [SECOND])

    left = forget(memory, SECOND)

    assert dict(left.pool.keys) == {4: FIRST}
    assert left.pool.free == memory.pool.free
    assert left.computed == frozenset()


def test_a_free_block_that_is_forgotten_is_handed_out_next_and_has_no_mark() -> None:
    """Those with contents stand behind 5 and 6, the longest unused of them first."""
    memory = compute(held(), [1, 2], [SECOND, THIRD])
    memory = give_back(give_back(memory, [1], mark=7), [2], mark=8)
    assert memory.pool.free == (5, 6, 1, 2)
    assert memory.marks == FrozenMap({1: 7, 2: 8})

    left = forget(memory, THIRD)

    assert left.pool.free == (2, 5, 6, 1)
    assert left.computed == {1}
    assert left.marks == FrozenMap({1: 7})


def test_what_no_block_holds_is_forgotten_already() -> None:
    memory = held()

    assert forget(memory, THIRD) is memory
