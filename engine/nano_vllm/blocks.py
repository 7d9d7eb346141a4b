"""The block manager of nano-vLLM, and the pool as a step that is being planned will find it.

Source: nano-vllm, chapters 5 and 7. Blocks are numbered from 0 and handed out first in, first out;
the lookup table names one block for a content, the last registered; its entry stays when that block
is handed out anew, so a hit has to be checked.
"""

from collections.abc import Iterator, Sequence

from engine.core import blocks
from spec.core.requests import BlockKey


class BlockManager(blocks.BlockManager):
    """Blocks with their holders and contents."""

    def __init__(self, size: int) -> None:
        """All blocks are free, in order, and empty."""
        super().__init__(size, first=0)

    def _is_kept(self, block: int) -> bool:
        return True

    def _evict(self, block: int, key: BlockKey) -> None:
        self.keys[block] = None

    def _name(self, block: int, key: BlockKey) -> None:
        self.keys[block] = key
        self.cached[key] = [block]


class PoolDraft:
    """The pool after the admissions that a step has planned so far; nothing of it has changed.

    `free`: how many blocks are left.
    """

    def __init__(self, manager: BlockManager) -> None:
        """No admission is planned."""
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
        """The block that the lookup table names for this content."""
        return self._named[key] if key in self._named else self._manager.lookup(key)

    def key_of(self, block: int) -> BlockKey | None:
        """The content that the block has."""
        return self._keys[block] if block in self._keys else self._manager.keys[block]

    def is_held(self, block: int) -> bool:
        """True if a request holds the block."""
        return block in self._held or self._manager.references[block] > 0

    def admit(self, hits: Sequence[int], count: int, keys: Sequence[BlockKey]) -> tuple[int, ...]:
        """The `count` next free blocks, for a request that takes these `hits` before them.

        `keys`: of its full blocks, hits first.
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
