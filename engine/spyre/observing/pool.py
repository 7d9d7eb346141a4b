"""The block manager as `spec.spyre.state.BlockPool`."""

from collections.abc import Mapping
from typing import TypeVar

from engine.spyre.blocks import BlockManager
from spec.core.blocks import BlockPool
from spec.core.requests import BlockKey
from spec.core.sharing import DerivedMap, SharedMap

Key = TypeVar("Key")
Value = TypeVar("Value")


class PoolObserver:
    """Watches one block manager, which notes for it which blocks have changed."""

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        self._changed = blocks.changed = set(range(1, blocks.size + 1))
        self._pool = BlockPool(size=blocks.size, free=())

    def pool(self) -> BlockPool:
        """The pool as it is now; maps in which nothing changed are those of the last one."""
        if self._changed:
            self._pool = BlockPool(
                size=self._blocks.size,
                free=self._blocks.free.as_order(),
                references=self._references(),
                cached=self._cached(),  # before the keys, which tell what was cached
                keys=self._keys(),
            )
            self._changed.clear()
        return self._pool

    def _references(self) -> SharedMap[int, int]:
        return _updated(
            self._pool.references,
            {block: self._blocks.references[block] or None for block in self._changed},
        )

    def _keys(self) -> SharedMap[int, BlockKey]:
        return _updated(
            self._pool.keys, {block: self._blocks.keys[block] for block in self._changed}
        )

    def _cached(self) -> SharedMap[BlockKey, tuple[int, ...]]:
        # Also contents that a block had before and has again: it stands behind others now.
        now, before = self._blocks.keys, self._pool.keys
        contents = {
            key for block in self._changed for key in (now[block], before.get(block)) if key
        }
        return _updated(
            self._pool.cached,
            {key: tuple(self._blocks.cached.get(key, ())) or None for key in contents},
        )


def _updated(
    old: SharedMap[Key, Value], changes: Mapping[Key, Value | None]
) -> SharedMap[Key, Value]:
    """The map with `changes` over it, None for what it lacks; itself if nothing differs."""
    differing = {key: value for key, value in changes.items() if old.get(key) != value}
    return DerivedMap.of(old, differing) if differing else old
