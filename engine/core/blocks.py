"""The KV blocks: which are free and in which order, which are shared, what is cached.

Source: vllm-v1, "KV cache manager". Everything is integers in lists with one place a block; every
operation costs what it touches and nothing for the rest of the pool.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice

from attrs import define

from engine.core.sharing import SharedOrder
from spec.core.arithmetic import cdiv
from spec.core.requests import BlockKey

_RUN = 256  # places of the free list that are described at once
_NONE = -1  # stands in the free list where there is no block


class FreeList:
    """The free blocks in the order in which they are handed out.

    They stand in one list from `_head` on, with room in front. A block taken out of the middle
    leaves a gap there; the list is rebuilt without gaps now and then.
    """

    def __init__(self, blocks: Iterable[int], size: int) -> None:
        """`blocks` out of 0 to `size` are free, in this order."""
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
            if (block := self._order[place]) != _NONE:
                yield block

    def as_order(self) -> SharedOrder[int]:
        """All of them at once; runs of places that have not changed are those of last time."""
        known, count = len(self._runs), cdiv(len(self._order), _RUN)
        self._runs += [()] * (count - known)
        self._stale.update(range(known, count))
        for run in self._stale:
            places = self._order[run * _RUN : (run + 1) * _RUN]
            self._runs[run] = tuple(filter(_NONE.__ne__, places))
        self._stale.clear()
        return SharedOrder(tuple(filter(None, self._runs[self._head // _RUN :])))

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

    def take(self, blocks: Iterable[int]) -> None:
        """Take these blocks out of the list."""
        order = self._order
        places = [self._place[block] for block in blocks]
        for place in places:
            order[place] = _NONE
        self._mark_stale(places)
        self.count -= len(places)
        head, end = self._head, len(order)
        while head < end and order[head] == _NONE:
            head += 1
        self._head = head

    def _mark_stale(self, places: Iterable[int]) -> None:
        """The runs of these places have changed, if they were ever described."""
        if self._runs:
            self._stale.update([place // _RUN for place in places])

    def _put(self, place: int, blocks: Sequence[int]) -> None:
        """From this place on, over room or behind the last."""
        end = place + len(blocks)
        self._order[place:end] = blocks
        for place_of_block, block in zip(range(place, end), blocks, strict=True):
            self._place[block] = place_of_block
        self._mark_stale(range(place, end, _RUN))
        self._mark_stale([end - 1] if blocks else [])
        self.count += len(blocks)

    def _make_anew(self, blocks: list[int]) -> None:
        """These blocks, with room for all blocks in front."""
        self._order = [_NONE] * self._size
        self._head = self._size
        self.count = 0
        self._runs.clear()
        self._stale.clear()
        self._put(self._head, blocks)


@define(eq=False)
class PrefixHit:
    """Cached blocks of a prompt's beginning; `held`: how many of them are held by requests.

    `is_stale`: it may be another one by now.
    """

    blocks: tuple[int, ...]
    held: int
    is_stale: bool = False


@define(eq=False)
class Changes:
    """Blocks whose holders or content changed, and contents that other blocks hold now."""

    blocks: set[int]
    contents: set[BlockKey]

    def clear(self) -> None:
        """All of them have been seen."""
        self.blocks.clear()
        self.contents.clear()


class BlockManager:
    """Blocks with their holders and contents.

    - `numbers`: of the blocks, in the order in which they are free at first.
    - `free`: blocks that no request holds.
    - `references`: holders of each block.
    - `keys`: the content that a block is known by, None where it is not cached.
    - `cached`: the blocks that hold a content, the one that a lookup finds first.
    - `watched`: the last prefix hit, at first of nothing, which is marked when it becomes stale.
    - `changes`: what changed, where an observer collects it.
    """

    def __init__(self, size: int, first: int = 1) -> None:
        """`size` blocks, numbered from `first` on, are free, in order, and empty."""
        self.numbers = range(first, first + size)
        self.free = FreeList(self.numbers, size)
        self.references = [0] * (first + size)
        self.keys: list[BlockKey | None] = [None] * (first + size)
        self.cached: dict[BlockKey, tuple[int, ...]] = {}
        self.watched = PrefixHit((), 0)
        self._watched_blocks: frozenset[int] = frozenset()
        self._awaited: frozenset[BlockKey] = frozenset()
        self.changes: Changes | None = None

    def lookup(self, key: BlockKey) -> int | None:
        """The block that holds this content, the first registered of them."""
        blocks = self.cached.get(key)
        return blocks[0] if blocks else None

    def watch(
        self,
        blocks: tuple[int, ...],
        awaited: Iterable[BlockKey] = (),
        others: Iterable[int] = (),
    ) -> PrefixHit:
        """These cached blocks as the one hit that is marked when it becomes stale.

        It does so when one of them or of the `others` changes hands or content, and when a block
        comes to hold an `awaited` content.
        """
        held = sum(self.references[block] > 0 for block in blocks)
        self.watched = PrefixHit(blocks, held)
        self._watched_blocks = frozenset(chain(blocks, others))
        self._awaited = frozenset(awaited)
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
            front = [*(block for block in freed if not self._is_kept(block)), *front]
            back += filter(self._is_kept, freed)
        return front, back

    def _is_kept(self, block: int) -> bool:
        """True if a block that is given back is handed out last."""
        return self.keys[block] is not None

    def acquire(self, blocks: Sequence[int]) -> None:
        """One more holder for each of these cached blocks; a false hit may name one twice."""
        references = self.references
        self.free.take({block for block in blocks if references[block] == 0})
        for block in blocks:
            references[block] += 1
        self._note(blocks)

    def allocate(self, blocks: Sequence[int]) -> None:
        """Hand out these free blocks, each to one holder and without its old content."""
        self.free.take(blocks)
        references, keys = self.references, self.keys
        for block in blocks:
            references[block] = 1
            if (key := keys[block]) is not None:
                self._evict(block, key)
                if self.changes is not None:
                    self.changes.contents.add(key)
        self._note(blocks)

    def _evict(self, block: int, key: BlockKey) -> None:
        """The block does not hold this content any more."""
        holders = self.cached[key]
        if len(holders) == 1:
            del self.cached[key]
        else:
            self.cached[key] = tuple(holder for holder in holders if holder != block)
        self.keys[block] = None

    def register(self, blocks: Sequence[int], keys: Sequence[BlockKey]) -> None:
        """Let lookups find these held blocks under their keys."""
        self._name(blocks, keys)
        self._note(blocks)
        if self.changes is not None:
            self.changes.contents.update(keys)
        if not self._awaited.isdisjoint(keys):
            self.watched.is_stale = True

    def _name(self, blocks: Sequence[int], keys: Sequence[BlockKey]) -> None:
        """The blocks hold these contents from now on."""
        cached, contents = self.cached, self.keys
        for block, key in zip(blocks, keys, strict=True):
            contents[block] = key
            holders = cached.get(key)
            cached[key] = (block,) if holders is None else (*holders, block)

    def release(self, table: Sequence[int]) -> None:
        """One holder less for each block of a request's table.

        Blocks without a holder become free, the table's tail first: those without content are
        handed out next, cached ones last.
        """
        references = self.references
        front: list[int] = []
        back: list[int] = []
        for block in reversed(table):
            references[block] -= 1
            if not references[block]:
                (back if self._is_kept(block) else front).append(block)
        self.free.put_front(front)
        self.free.put_back(back)
        self._note(table)

    def forget_contents(self) -> None:
        """Nothing is cached any more; no request may hold a block."""
        if self.changes is not None:
            self.changes.contents.update(self.cached)
        known = [block for block in self.numbers if self.keys[block] is not None]
        self.keys = [None] * len(self.keys)
        self.cached = {}
        self._note(known)

    def _note(self, blocks: Sequence[int]) -> None:
        if self.changes is not None:
            self.changes.blocks.update(blocks)
        if not self._watched_blocks.isdisjoint(blocks):
            self.watched.is_stale = True
