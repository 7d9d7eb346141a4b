"""The block manager of vLLM V1, and a draft of the pool for the planning of a step.

Source: vllm-v1, "KV cache manager"; the order of the free list is that of the release.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from engine.core import blocks
from spec.core.requests import BlockKey


class BlockManager(blocks.BlockManager):
    """Blocks with their holders and contents."""

    def __init__(self, size: int, empty_first: bool) -> None:
        """All blocks are free, in order, and empty.

        `empty_first`: released blocks without content go to the front of the free list.
        """
        super().__init__(size)
        self._all_behind = not empty_first

    def is_kept(self, block: int, key: BlockKey | None) -> bool:
        """True if a released block with this content goes to the end of the free list."""
        return self._all_behind or key is not None

    def _is_kept(self, block: int) -> bool:
        return self.is_kept(block, self.keys[block])


class PoolDraft:
    """The pool after the decisions of a plan so far; the manager itself is unchanged.

    `free`: number of free blocks.
    """

    def __init__(self, manager: BlockManager) -> None:
        """Nothing is planned."""
        self.free = manager.free.count
        self.is_untouched = True
        self._manager = manager
        # Free blocks: those put in front, those of the manager but for what has moved, those behind
        self._front: deque[int] = deque()
        self._free: Iterator[int] = iter(manager.free)
        self._moved: set[int] = set()
        self._back: deque[int] = deque()
        self._references: dict[int, int] = {}
        self._keys: dict[int, BlockKey | None] = {}
        self._cached: dict[BlockKey, list[int]] = {}
        # Blocks that were handed out, and those that were registered with their keys, in order: no
        # query has needed them yet.
        self._unseen: list[tuple[Sequence[int], Sequence[BlockKey] | None]] = []
        self._handed_out: set[int] = set()
        self._registered: set[BlockKey] = set()

    # Queries.

    def references(self, block: int) -> int:
        """How many requests hold the block."""
        if block in self._handed_out:
            self._see()
        known = self._references.get(block)
        return self._manager.references[block] if known is None else known

    def content_key(self, block: int) -> BlockKey | None:
        """The content that the block is known by."""
        self._see()
        return self._keys[block] if block in self._keys else self._manager.keys[block]

    def lookup(self, key: BlockKey) -> int | None:
        """The block that holds this content, the first registered of them."""
        if key not in self._registered:
            block = self._manager.lookup(key)
            if block is None or block not in self._handed_out:
                return block
        self._see()
        known = self._cached.get(key)
        return known[0] if known else None

    def _see(self) -> None:
        """Note what was handed out and registered since the last query."""
        unseen, self._unseen = self._unseen, []
        for moved, keys in unseen:
            if keys is None:
                for block in moved:
                    self._references[block] = 1
                    if (key := self.content_key(block)) is not None:
                        self._holding(key).remove(block)
                        self._keys[block] = None
            else:
                for block, key in zip(moved, keys, strict=True):
                    self._keys[block] = key
                    self._holding(key).append(block)

    def _holding(self, key: BlockKey) -> list[int]:
        """The blocks that hold the content, to be changed."""
        known = self._cached.get(key)
        if known is None:
            known = self._cached[key] = [*self._manager.cached.get(key, ())]
        return known

    # Planned changes.

    def acquire(self, hits: Iterable[int]) -> None:
        """One more holder for each of these cached blocks."""
        self.is_untouched = False
        for block in hits:
            if not (held := self.references(block)):
                self._take(block)
            self._references[block] = held + 1

    def allocate(self, count: int) -> tuple[int, ...]:
        """The next free blocks, each with one holder and without its old content."""
        self.is_untouched = False
        if self._front or self._moved:
            blocks = tuple(self._next() for _ in range(count))
        else:
            blocks = tuple(islice(self._free, count))
            blocks += tuple(self._back.popleft() for _ in range(count - len(blocks)))
        self.free -= count
        self._unseen.append((blocks, None))
        self._handed_out.update(blocks)
        return blocks

    def _next(self) -> int:
        if self._front:
            return self._front.popleft()
        for block in self._free:
            if block not in self._moved:
                return block
        return self._back.popleft()

    def _take(self, block: int) -> None:
        """Take the block out of the free list."""
        self.free -= 1
        for place in (self._front, self._back):
            if block in place:
                place.remove(block)
                return
        self._moved.add(block)

    def register(self, blocks: Sequence[int], keys: Sequence[BlockKey]) -> None:
        """Let lookups find these held blocks under their keys."""
        self.is_untouched = False
        self._unseen.append((blocks, keys))
        self._registered.update(keys)

    def release(self, table: Sequence[int]) -> None:
        """One holder less for each block of a request's table, the tail first."""
        self.is_untouched = False
        front: list[int] = []
        for block in reversed(table):
            held = self._references[block] = self.references(block) - 1
            if held:
                continue
            self.free += 1
            kept = self._manager.is_kept(block, self.content_key(block))
            (self._back if kept else front).append(block)
        self._front.extendleft(reversed(front))
