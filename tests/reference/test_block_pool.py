"""The block pool against a naive one: lists and dicts that are changed in place."""

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reference.core.block_pool import allocate, evict, lookup, new_pool, register, release, touch
from reference.core.guards import GuardError
from spec.core.blocks import BlockPool

CONTENTS = [b"a", b"b", b"c", b"d"]

# --- by example -----------------------------------------------------------------------------------


def cached_pool() -> BlockPool:
    """Six blocks: 1 to 4 were held by one request, 1 and 2 hold the contents a and b, 3 a again."""
    pool, blocks = allocate(new_pool(6), 4)
    pool = register(pool, blocks[:3], [b"a", b"b", b"a"])
    return release(pool, blocks)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (lambda pool: allocate(pool, 7), "allocate is not allowed here: BLK-1"),
        (lambda pool: touch(pool, (5,)), "touch is not allowed here: BLK-5"),
        (lambda pool: evict(touch(pool, (1,)), (1,)), "evict is not allowed here: BLK-5"),
        (lambda pool: release(pool, (1,)), "release is not allowed here: BLK-2"),
        (lambda pool: register(pool, (5,), (b"c",)), "register is not allowed here: .*PFX-1"),
    ],
)
def test_guard_refuses_by_name(asked: Callable[[BlockPool], object], message: str) -> None:
    with pytest.raises(GuardError, match=message):
        asked(cached_pool())


# --- against a naive pool -------------------------------------------------------------------------


class NaivePool:
    """A pool of plain lists, without guards or copies."""

    def __init__(self, size: int) -> None:
        self.free = list(range(1, size + 1))
        self.holders: Counter[int] = Counter()
        self.contents: dict[int, bytes] = {}  # in the order in which blocks were cached

    def lookup(self, keys: list[bytes]) -> list[int]:
        found: list[int] = []
        for key in keys:
            blocks = [block for block, content in self.contents.items() if content == key]
            if not blocks:
                return found
            found.append(blocks[0])
        return found

    def touch(self, blocks: list[int]) -> None:
        for block in blocks:
            if block in self.free:
                self.free.remove(block)
            self.holders[block] += 1

    def allocate(self, count: int) -> list[int]:
        blocks = [self.free.pop(0) for _ in range(count)]
        for block in blocks:
            self.contents.pop(block, None)
            self.holders[block] += 1
        return blocks

    def register(self, block: int, key: bytes) -> None:
        self.contents[block] = key

    def release(self, blocks: list[int]) -> None:
        in_front: list[int] = []
        for block in reversed(blocks):
            self.holders[block] -= 1
            if self.holders[block] == 0:
                del self.holders[block]
                (self.free if block in self.contents else in_front).append(block)
        self.free = in_front + self.free


class PoolMachine(RuleBasedStateMachine):
    """Requests take, share, fill and give back blocks, in any order."""

    @initialize(size=st.integers(1, 8))
    def begin(self, size: int) -> None:
        self.size = size
        self.pool = new_pool(size)
        self.naive = NaivePool(size)
        self.tables: list[list[int]] = []

    @rule(data=st.data())
    def allocates(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.naive.free)), label="blocks")
        self.pool, blocks = allocate(self.pool, count)
        assert list(blocks) == self.naive.allocate(count)
        assert not set(blocks) & set(self.pool.keys)  # BLK-5
        self.tables.append(list(blocks))

    @rule(keys=st.lists(st.sampled_from(CONTENTS), max_size=4, unique=True))
    def shares(self, keys: list[bytes]) -> None:
        blocks = lookup(self.pool, keys)
        assert list(blocks) == self.naive.lookup(keys)
        self.pool = touch(self.pool, blocks)
        self.naive.touch(list(blocks))
        self.tables.append(list(blocks))

    @precondition(lambda self: self.unfilled())
    @rule(data=st.data(), key=st.sampled_from(CONTENTS))
    def fills(self, data: st.DataObject, key: bytes) -> None:
        block = data.draw(st.sampled_from(self.unfilled()), label="block")
        self.pool = register(self.pool, [block], [key])
        self.naive.register(block, key)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def gives_back(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1), label="table"))
        self.pool = release(self.pool, table)
        self.naive.release(table)

    @precondition(lambda self: any(block in self.naive.free for block in self.naive.contents))
    @rule(data=st.data())
    def forgets(self, data: st.DataObject) -> None:
        unheld = [block for block in self.naive.contents if block in self.naive.free]
        block = data.draw(st.sampled_from(unheld), label="block")
        self.pool = evict(self.pool, [block])
        del self.naive.contents[block]

    @rule(more=st.integers(1, 3))
    def asks_for_too_much(self, more: int) -> None:
        with pytest.raises(GuardError, match="BLK-1"):
            allocate(self.pool, len(self.naive.free) + more)

    @precondition(lambda self: self.naive.free)
    @rule(data=st.data())
    def gives_back_what_is_not_held(self, data: st.DataObject) -> None:
        with pytest.raises(GuardError, match="BLK-2"):
            release(self.pool, [data.draw(st.sampled_from(self.naive.free))])

    def unfilled(self) -> list[int]:
        return [block for block in self.naive.holders if block not in self.naive.contents]

    # --- the rules of the pool, said once more ------------------------------------------------

    @invariant()
    def blk_1_every_block_is_free_once_or_held(self) -> None:
        held = sorted(self.pool.references)
        assert sorted([*self.pool.free, *held]) == list(range(1, self.size + 1))
        assert self.pool.size == self.size

    @invariant()
    def blk_2_references_count_the_tables(self) -> None:
        counts = Counter(block for table in self.tables for block in table)
        assert dict(self.pool.references) == dict(counts) == dict(self.naive.holders)

    @invariant()
    def blk_3_block_zero_is_never_there(self) -> None:
        assert 0 not in self.pool.free
        assert 0 not in self.pool.references
        assert 0 not in self.pool.keys

    @invariant()
    def blk_4_free_blocks_are_in_the_order_of_the_naive_pool(self) -> None:
        assert list(self.pool.free) == self.naive.free

    @invariant()
    def blk_5_contents_and_blocks_name_each_other(self) -> None:
        assert dict(self.pool.keys) == self.naive.contents
        by_content: dict[bytes, list[int]] = {}
        for block, key in self.naive.contents.items():
            by_content.setdefault(key, []).append(block)
        assert {key: list(blocks) for key, blocks in self.pool.cached.items()} == by_content

    def teardown(self) -> None:
        """When all have given back what they held, everything is free."""
        for table in getattr(self, "tables", []):
            self.pool = release(self.pool, table)
        if hasattr(self, "pool"):
            assert not self.pool.references
            assert len(self.pool.free) == self.size


TestPool = PoolMachine.TestCase
TestPool.settings = settings(stateful_step_count=40)
