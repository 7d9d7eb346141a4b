"""The block manager of nano-vLLM, and a draft of the pool for the planning of a step.

Source: nano-vllm, chapters 5 and 7. Block ids begin with 0. Free blocks are allocated first in,
first out. The lookup table has one block for each content, the last registered one. The entry stays
when that block is allocated for other contents, so a hit has to be checked.
"""

from collections.abc import Iterator, Sequence

from engine.core import blocks
from spec.core.requests import BlockKey


class BlockManager(blocks.BlockManager):
    """Blocks with reference counts and contents."""

    def __init__(self, size: int) -> None:
        """All blocks are free, in order, and empty."""
        super().__init__(size, first=0)

    def _is_kept(self, block: int) -> bool:
        return True

    def _evict(self, block: int, key: BlockKey) -> None:
        self.keys[block] = None

    def _name(self, blocks: Sequence[int], keys: Sequence[BlockKey]) -> None:
        for block, key in zip(blocks, keys, strict=True):
            self.keys[block] = key
            self.cached[key] = (block,)


class PoolDraft:
    """The pool as it will be after the admissions planned so far; the pool itself is unchanged.

    `free`: number of free blocks.
    """

    def __init__(self, manager: BlockManager) -> None:
        """A draft without admissions."""
        self.free = manager.free.count
        self._manager = manager
        self._next: Iterator[int] = iter(manager.free)
        self._held: set[int] = set()
        self._keys: dict[int, BlockKey | None] = {}
        self._named: dict[BlockKey, int] = {}

    @property
    def is_untouched(self) -> bool:
        """True before the first admission."""
        return not self._held

    def lookup(self, key: BlockKey) -> int | None:
        """The block that the lookup table has for this key, or None."""
        return self._named[key] if key in self._named else self._manager.lookup(key)

    def content_key(self, block: int) -> BlockKey | None:
        """The key of the block's content, or None."""
        return self._keys[block] if block in self._keys else self._manager.keys[block]

    def is_held(self, block: int) -> bool:
        """True if a request holds the block."""
        return block in self._held or self._manager.references[block] > 0

    def admit(self, hits: Sequence[int], count: int, keys: Sequence[BlockKey]) -> tuple[int, ...]:
        """Allocate the next `count` free blocks to a request with the cached blocks `hits`.

        `keys`: keys of the request's full blocks, hits first.
        """
        for block in hits:
            if not self.is_held(block):
                self._take(block)
        fresh = tuple(self._next_free() for _ in range(count))
        table = (*hits, *fresh)
        self._keys.update(dict.fromkeys(fresh))
        self._keys.update(zip(table, keys, strict=False))
        self._named.update(zip(keys, table, strict=False))
        return fresh

    def _next_free(self) -> int:
        block = next(block for block in self._next if block not in self._held)
        self._take(block)
        return block

    def _take(self, block: int) -> None:
        self._held.add(block)
        self.free -= 1
