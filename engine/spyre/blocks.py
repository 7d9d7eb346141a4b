"""The KV blocks: which are free and in which order, which are shared, what is cached.

Source: vllm-v1, "KV cache manager"; block 0 is the padding block of spyre, "Padding", and is
never handed out. Everything is integers in lists with one place a block; every operation costs
what it touches and nothing for the rest of the pool.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice

from attrs import define

from spec.core.arithmetic import cdiv
from spec.core.requests import BlockKey
from spec.core.sharing import BlockOrder

_RUN = 256  # places of the free list that are described at once


class FreeList:
    """The free blocks in the order in which they are handed out.

    They stand in one list from `_head` on, with room in front. A block taken out of the middle
    leaves a 0 there, which is no block; now and then the list is made anew without those.
    """

    def __init__(self, blocks: Iterable[int], size: int) -> None:
        """`blocks` out of 1 to `size` are free, in this order."""
        self.count = 0
        self._size = size
        self._order: list[int] = []
        self._place = [0] * (size + 1)
        self._head = 0
        self._runs: list[tuple[int, ...]] = []
        self._stale: set[int] = set()
        self._make_anew(list(blocks))

    def __iter__(self) -> Iterator[int]:
        for place in range(self._head, len(self._order)):
            if block := self._order[place]:
                yield block

    def as_order(self) -> BlockOrder:
        """All of them at once; runs of places that have not changed are those of last time."""
        count = cdiv(len(self._order), _RUN)
        self._runs += [()] * (count - len(self._runs))
        for run in self._stale:
            places = self._order[run * _RUN : (run + 1) * _RUN]
            self._runs[run] = tuple(filter(None, places))
        self._stale.clear()
        return BlockOrder(tuple(filter(None, self._runs[self._head // _RUN :])))

    def put_front(self, blocks: Sequence[int]) -> None:
        """These are handed out next, the first of them first."""
        if len(blocks) > self._head:
            self._make_anew(list(self))
        self._head -= len(blocks)
        self._put(self._head, blocks)

    def put_back(self, blocks: Sequence[int]) -> None:
        """These are handed out last, the last of them last."""
        if len(self._order) > 4 * self._size:
            self._make_anew(list(self))
        self._put(len(self._order), blocks)

    def take(self, block: int) -> None:
        """The block, wherever it stands, is free no longer."""
        place = self._place[block]
        self._order[place] = 0
        self._stale.add(place // _RUN)
        self.count -= 1
        while self._head < len(self._order) and not self._order[self._head]:
            self._head += 1

    def _put(self, place: int, blocks: Sequence[int]) -> None:
        """From this place on, over room or behind the last."""
        self._order[place : place + len(blocks)] = blocks
        for offset, block in enumerate(blocks):
            self._place[block] = place + offset
        self._stale.update(range(place // _RUN, cdiv(place + len(blocks), _RUN)))
        self.count += len(blocks)

    def _make_anew(self, blocks: list[int]) -> None:
        """These blocks, with room for all blocks in front."""
        self._order = [0] * self._size
        self._head = self._size
        self.count = 0
        self._runs.clear()
        self._stale.clear()
        self._put(self._head, blocks)


@define(eq=False)
class PrefixHit:
    """Cached blocks of a prompt's beginning; `held`: how many of them are held by requests.

    `is_stale`: one of them has changed hands or content since.
    """

    blocks: tuple[int, ...]
    held: int
    is_stale: bool = False


class BlockManager:
    """The blocks 1 to `size` with their holders and contents.

    - `free`: blocks that no request holds.
    - `references`: holders of each block.
    - `keys`: the content that a block is known by, None where it is not cached.
    - `cached`: the blocks that hold a content, the one that a lookup finds first.
    - `watched`: the last prefix hit, which is marked when it becomes stale.
    - `changed`: blocks whose holders or content changed, where an observer collects them.
    """

    def __init__(self, size: int) -> None:
        """All blocks are free, in order, and empty."""
        self.size = size
        self.free = FreeList(range(1, size + 1), size)
        self.references = [0] * (size + 1)
        self.keys: list[BlockKey | None] = [None] * (size + 1)
        self.cached: dict[BlockKey, list[int]] = {}
        self.watched: PrefixHit | None = None
        self._watched_blocks: frozenset[int] = frozenset()
        self.changed: set[int] | None = None

    def lookup(self, key: BlockKey) -> int | None:
        """The block that holds this content, the first registered of them."""
        blocks = self.cached.get(key)
        return blocks[0] if blocks else None

    def watch(self, blocks: tuple[int, ...]) -> PrefixHit:
        """These cached blocks as the one hit that is marked when it becomes stale."""
        held = sum(self.references[block] > 0 for block in blocks)
        self.watched = PrefixHit(blocks, held)
        self._watched_blocks = frozenset(blocks)
        return self.watched

    def next_free(
        self,
        count: int,
        without: Collection[int] = (),
        front: Iterable[int] = (),
        back: Iterable[int] = (),
    ) -> tuple[int, ...]:
        """The blocks that are handed out next: `front`, the free ones but `without`, `back`."""
        free = (block for block in self.free if block not in without) if without else self.free
        return tuple(islice(chain(front, free, back), count))

    def freed_by(self, tables: Iterable[Sequence[int]]) -> tuple[list[int], list[int]]:
        """What giving back these tables one after the other puts to the front and to the back."""
        left: dict[int, int] = {}
        front: list[int] = []
        back: list[int] = []
        for table in tables:
            freed = []
            for block in reversed(table):
                left[block] = left.get(block, self.references[block]) - 1
                if left[block] == 0:
                    freed.append(block)
            front = [*(block for block in freed if self.keys[block] is None), *front]
            back += (block for block in freed if self.keys[block] is not None)
        return front, back

    def acquire(self, blocks: Sequence[int]) -> None:
        """One more holder for each of these cached blocks."""
        for block in blocks:
            if self.references[block] == 0:
                self.free.take(block)
            self.references[block] += 1
        self._note(blocks)

    def allocate(self, blocks: Sequence[int]) -> None:
        """Hand out these free blocks, each to one holder and without its old content."""
        for block in blocks:
            self.free.take(block)
            self.references[block] = 1
            if self.keys[block] is not None:
                self._evict(block, self.keys[block])
        self._note(blocks)

    def _evict(self, block: int, key: BlockKey | None) -> None:
        assert key is not None
        holders = self.cached[key]
        holders.remove(block)
        if not holders:
            del self.cached[key]
        self.keys[block] = None

    def register(self, blocks: Sequence[int], keys: Sequence[BlockKey]) -> None:
        """Let lookups find these held blocks under their keys."""
        for block, key in zip(blocks, keys, strict=True):
            self.keys[block] = key
            self.cached.setdefault(key, []).append(block)
        self._note(blocks)

    def release(self, table: Sequence[int]) -> None:
        """One holder less for each block of a request's table.

        Blocks without a holder become free, the table's tail first: those without content are
        handed out next, cached ones last.
        """
        front, back = self.freed_by([table])
        for block in table:
            self.references[block] -= 1
        self.free.put_front(front)
        self.free.put_back(back)
        self._note(table)

    def forget_contents(self) -> None:
        """Nothing is cached any more; no request may hold a block."""
        cached = [block for blocks in self.cached.values() for block in blocks]
        for block in cached:
            self._evict(block, self.keys[block])
        self._note(cached)

    def _note(self, blocks: Sequence[int]) -> None:
        if self.changed is not None:
            self.changed.update(blocks)
        if self.watched is not None and not self._watched_blocks.isdisjoint(blocks):
            self.watched.is_stale = True
