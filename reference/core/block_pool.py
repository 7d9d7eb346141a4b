"""Transitions of the KV block pool: hand out, share, cache, give back.

Source: vllm-v1, "KV cache manager", with the free order of vLLM 0.28.0; block 0 is the padding
block of spyre, "Padding", and is never in the pool. Shared by all machines whose blocks are
counted and cached.

Each raises GuardError, with the rule that its guard stands for, where the guard does not hold.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from attrs import evolve

from reference.core.frozen_map import FrozenMap, updated, without
from reference.core.guards import require
from spec.core.blocks import BlockPool
from spec.core.requests import BlockKey


def new_pool(size: int) -> BlockPool:
    """A pool of `size` blocks, numbered from 1, all free."""
    return empty_pool(range(1, size + 1))


def empty_pool(blocks: Iterable[int]) -> BlockPool:
    """A pool of these blocks, all free and without content."""
    free = tuple(blocks)
    return BlockPool(len(free), free, FrozenMap(), FrozenMap(), FrozenMap())


def lookup(pool: BlockPool, keys: Sequence[BlockKey]) -> tuple[int, ...]:
    """The cached blocks of the longest leading run of `keys`, one block a key."""
    found = []
    for key in keys:
        if key not in pool.cached:
            break
        found.append(pool.cached[key][0])
    return tuple(found)


def touch(pool: BlockPool, blocks: Sequence[int]) -> BlockPool:
    """One more holder for each of `blocks`, as often as it is named; none is free any more."""
    # guard
    require(all(block in pool.keys for block in blocks), "touch", "BLK-5")
    # effect
    if not blocks:
        return pool
    more = Counter(blocks)
    return evolve(
        pool,
        free=tuple(block for block in pool.free if block not in more),
        references=updated(
            pool.references,
            {block: pool.references.get(block, 0) + holders for block, holders in more.items()},
        ),
    )


def allocate(pool: BlockPool, count: int) -> tuple[BlockPool, tuple[int, ...]]:
    """The next `count` free blocks, each with one holder and without its old content."""
    # guard
    require(count <= len(pool.free), "allocate", "BLK-1")
    # effect
    if count == 0:
        return pool, ()
    blocks = tuple(pool.free[:count])
    pool = evict(pool, [block for block in blocks if block in pool.keys])
    return (
        evolve(
            pool,
            free=pool.free[count:],
            references=updated(pool.references, dict.fromkeys(blocks, 1)),
        ),
        blocks,
    )


def evict(pool: BlockPool, blocks: Sequence[int]) -> BlockPool:
    """Forget what `blocks` hold, so that no lookup finds them."""
    # guard
    known = all(block in pool.keys and block not in pool.references for block in blocks)
    require(known, "evict", "BLK-5")
    # effect
    if not blocks:
        return pool
    cached = dict(pool.cached)
    for block in blocks:
        key = pool.keys[block]
        cached[key] = tuple(other for other in cached[key] if other != block)
        if not cached[key]:
            del cached[key]
    return evolve(pool, keys=without(pool.keys, *blocks), cached=FrozenMap(cached))


def register(pool: BlockPool, blocks: Sequence[int], keys: Sequence[BlockKey]) -> BlockPool:
    """Let lookups find `blocks` under `keys`; a content may be held by several blocks."""
    # guard
    new = all(block in pool.references and block not in pool.keys for block in blocks)
    require(new, "register", "SPY-PFX-1")
    # effect
    if not blocks:
        return pool
    cached = dict(pool.cached)
    for block, key in zip(blocks, keys, strict=True):
        cached[key] = (*cached.get(key, ()), block)
    return evolve(
        pool,
        keys=updated(pool.keys, dict(zip(blocks, keys, strict=True))),
        cached=FrozenMap(cached),
    )


def release(pool: BlockPool, blocks: Sequence[int]) -> BlockPool:
    """One holder less for each of `blocks`, a request's table in its order.

    Blocks without a holder become free, the table's tail first: those without cached content
    are handed out next, those with cached content last.
    """
    # guard
    require(all(block in pool.references for block in blocks), "release", "BLK-2")
    # effect
    left = {block: pool.references[block] - 1 for block in blocks}
    freed = [block for block in reversed(blocks) if left[block] == 0]
    held = {block: count for block, count in left.items() if count}
    plain = tuple(block for block in freed if block not in pool.keys)
    cached = tuple(block for block in freed if block in pool.keys)
    return evolve(
        pool,
        free=(*plain, *pool.free, *cached),
        references=updated(without(pool.references, *freed), held),
    )
