"""The block manager: in which order blocks are handed out, how they are held, what is found."""

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.blocks import BlockManager, Changes, FreeList, PrefixHit
from engine.core.observing import PoolObserver
from reference.core import block_pool
from reference.core.block_pool import empty_pool
from spec.core.blocks import BlockPool


def pool_of(blocks: BlockManager) -> BlockPool:
    return PoolObserver(blocks).pool()


# --- the free list ------------------------------------------------------------------------------


free_lists = st.one_of(
    st.tuples(st.just("front"), st.integers(0, 3)),
    st.tuples(st.just("back"), st.integers(0, 3)),
    st.tuples(st.just("take"), st.integers(0, 9)),
)


@pytest.fixture(scope="module", params=[2, 256])
def places_in_a_run(request: pytest.FixtureRequest) -> Iterator[int]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("engine.core.blocks._RUN", request.param)
        yield request.param


@given(st.integers(1, 6), st.lists(free_lists, max_size=120))
def test_free_list_is_a_list_with_cheap_ends(
    places_in_a_run: int, size: int, drawn: list[tuple[str, int]]
) -> None:
    expected = list(range(1, size + 1))
    free, taken = FreeList(expected, size), list[int]()
    for action, number in drawn:
        if action == "take":
            if expected:
                taken.append(expected.pop(number % len(expected)))
                free.take([taken[-1]])
        else:
            put, taken = taken[:number], taken[number:]
            expected = put + expected if action == "front" else expected + put
            (free.put_front if action == "front" else free.put_back)(put)

        assert list(free) == list(free.as_order()) == expected
        assert free.count == len(expected)


def test_orders_of_a_free_list_share_the_runs_in_which_nothing_moved() -> None:
    free = FreeList(range(1, 2_001), 2_000)
    before = free.as_order()
    for block in (1, 2, 1_000):
        free.take([block])
    free.put_back([1_000])
    after = free.as_order()

    shared = {id(run) for run in before.runs} & {id(run) for run in after.runs}
    assert len(after.runs) - len(shared) == 3
    assert after == (*range(3, 1_000), *range(1_001, 2_001), 1_000)
    assert before == tuple(range(1, 2_001))


def test_tail_may_be_put_in_front_for_ever() -> None:
    free, expected = FreeList(range(1, 5), size=4), [1, 2, 3, 4]
    for _ in range(50):
        expected = [expected[-1], *expected[:-1]]
        free.take([expected[0]])
        free.put_front(expected[:1])

        assert list(free) == expected


def test_free_list_stays_short() -> None:
    free = FreeList(range(1, 5), size=4)
    for _ in range(1_000):
        block = next(iter(free))
        free.take([block])
        free.put_back([block])

    assert len(free._order) <= 4 * 4 + 1


@pytest.mark.parametrize("looks_at", [range(40), [16], [17]])
def test_order_of_a_list_that_was_made_anew_has_its_blocks_and_no_others(
    monkeypatch: pytest.MonkeyPatch, looks_at: Sequence[int]
) -> None:
    """Of 4 blocks 16 places are used up, then the list is made anew; a run is 2 places."""
    monkeypatch.setattr("engine.core.blocks._RUN", 2)
    free = FreeList(range(1, 5), size=4)
    for turn in range(40):
        block = next(iter(free))
        free.take([block])
        free.put_back([block])

        if turn in looks_at:
            assert list(free.as_order()) == list(free)


# --- handing out and giving back ----------------------------------------------------------------


def test_what_would_be_freed_is_foretold() -> None:
    blocks = BlockManager(8)
    blocks.allocate((1, 2, 3, 4, 5))
    blocks.register([1], [b"shared"])
    blocks.acquire([1])

    front, back = blocks.freed_by([(1, 4, 5), (1, 2, 3)])

    assert (front, back) == ([3, 2, 5, 4], [1])
    assert blocks.next_free(6, front=front, back=back) == (3, 2, 5, 4, 6, 7)
    blocks.release((1, 4, 5))
    blocks.release((1, 2, 3))
    assert list(blocks.free) == [3, 2, 5, 4, 6, 7, 8, 1]


def test_block_handed_out_anew_is_not_found_any_more() -> None:
    blocks = BlockManager(2)
    blocks.allocate((1, 2))
    blocks.register([1, 2], [b"same", b"same"])
    blocks.release((1, 2))
    assert blocks.lookup(b"same") == 1

    blocks.allocate(blocks.next_free(1))

    assert list(blocks.free) == [1]
    assert blocks.lookup(b"same") == 1
    blocks.allocate((1,))
    assert blocks.lookup(b"same") is None
    assert not blocks.cached


def watched_pool() -> tuple[BlockManager, PrefixHit]:
    """Block 1 is cached and held, 2 is cached and free, 3 is held, 4 is free; 1 and 2 are a hit."""
    blocks = BlockManager(4)
    blocks.allocate((1, 2, 3))
    blocks.register([1, 2], [b"one", b"two"])
    blocks.release((2,))
    return blocks, blocks.watch((1, 2))


def test_free_block_that_a_false_hit_names_twice_is_taken_once() -> None:
    blocks = BlockManager(3)
    blocks.acquire((2, 2))
    assert (blocks.free.count, blocks.references[2]) == (2, 2)


def test_hit_counts_the_held_blocks() -> None:
    _, hit = watched_pool()

    assert (hit.blocks, hit.held, hit.is_stale) == ((1, 2), 1, False)


@pytest.mark.parametrize(
    ("change", "is_stale"),
    [
        (lambda blocks: blocks.allocate((4,)), False),
        (lambda blocks: blocks.register([3], [b"three"]), False),
        (lambda blocks: blocks.release((3,)), False),
        (lambda blocks: blocks.release((1,)), True),
        (lambda blocks: blocks.acquire((2,)), True),
        (lambda blocks: blocks.allocate((2,)), True),
        (lambda blocks: (blocks.release((3, 1)), blocks.forget_contents()), True),
    ],
)
def test_hit_is_stale_once_one_of_its_blocks_changes(
    change: Callable[[BlockManager], object], is_stale: bool
) -> None:
    blocks, hit = watched_pool()

    change(blocks)

    assert hit.is_stale == is_stale


def test_only_the_last_hit_is_watched() -> None:
    blocks, hit = watched_pool()
    blocks.watch((2,))
    blocks.release((1,))

    assert not hit.is_stale
    assert blocks.watched is not hit


def test_contents_can_be_forgotten_at_once() -> None:
    blocks = BlockManager(3)
    blocks.allocate((1,))
    blocks.register([1], [b"lost"])
    blocks.release((1,))
    changes = blocks.changes = Changes(set(), set())

    blocks.forget_contents()

    assert blocks.lookup(b"lost") is None
    assert (changes.blocks, changes.contents) == ({1}, {b"lost"})
    assert pool_of(blocks) == empty_pool([2, 3, 1])


# --- against the reference ----------------------------------------------------------------------


class Both:
    """The reference's pool and the manager, side by side."""

    def __init__(self, size: int) -> None:
        self.pool = block_pool.new_pool(size)
        self.blocks = BlockManager(size)
        self.observer = PoolObserver(self.blocks)
        self.tables: list[tuple[int, ...]] = []

    def admit(self, keys: Sequence[bytes], count: int) -> None:
        """A new table: cached blocks of `keys`, then `count` new ones, all registered."""
        hits = block_pool.lookup(self.pool, keys)
        revived = [block for block in hits if block not in self.pool.references]
        if count > len(self.pool.free) - len(revived):
            return
        expected = self.blocks.next_free(count, without=set(hits))
        self.pool, new = block_pool.allocate(block_pool.touch(self.pool, hits), count)
        assert expected == new
        self.blocks.acquire(hits)
        self.blocks.allocate(new)
        fresh = keys[len(hits) :][:count]
        self.pool = block_pool.register(self.pool, new[: len(fresh)], fresh)
        self.blocks.register(new[: len(fresh)], fresh)
        self.tables.append((*hits, *new))

    def leave(self, place: int) -> None:
        """One of the tables is given back."""
        if self.tables:
            table = self.tables.pop(place % len(self.tables))
            self.pool = block_pool.release(self.pool, table)
            self.blocks.release(table)


def chain(length: int, branch: int) -> list[bytes]:
    """Keys of a prompt; prompts share their beginning, up to `branch`."""
    return [bytes([depth, min(depth, branch)]) for depth in range(length)]


actions = st.one_of(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 4)), st.integers(0, 9)
)


@given(st.integers(1, 12), st.lists(actions, max_size=40))
def test_manager_does_what_the_reference_pool_does(
    size: int, drawn: list[tuple[int, int, int] | int]
) -> None:
    both = Both(size)
    for action in drawn:
        if isinstance(action, int):
            both.leave(action)
        else:
            length, branch, count = action
            both.admit(chain(length, branch), count)

        assert both.observer.pool() == both.pool
        assert both.blocks.free.count == len(both.pool.free)
