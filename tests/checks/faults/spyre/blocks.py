"""Faults of the block pool: hand out, share, cache, evict, give back."""

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from reference.core import block_pool
from reference.core.frozen_map import without
from reference.spyre import machine, transitions
from spec.core import requests
from spec.core.blocks import BlockPool
from spec.core.requests import BlockKey
from spec.spyre.records import Context
from spec.spyre.state import Sequence as Row
from tests.checks.faults.patches import (
    Wrong,
    changed,
    depending,
    from_the_tail,
    held_once,
    kept,
    once_held,
    own_tokens_only,
)
from tests.checks.faults.spyre.table import fault

# --- new_pool, allocate --------------------------------------------------------------------------

fault(machine, "new_pool", on="layout", rules="BLK-3")(
    lambda right, size: evolve(right(size), free=tuple(range(size))),
    "block zero in the pool: the pool starts with block 0",
)
fault(block_pool, "empty_pool", on="layout", rules="BLK-3")(
    lambda right, blocks: right([0, *blocks][:-1]),
    "block zero for the last: the pool has block 0 instead of its last one",
)
fault(transitions, "allocate", on="layout", rules="BLK-3, BLK-1, BLK-4, SPY-PAD-5, BLK-6")(
    lambda right, pool, count: right(evolve(pool, free=(0, *pool.free)), count),
    "block zero handed out: block 0 is handed out before all others",
)
fault(transitions, "allocate", on="layout", rules="BLK-4")(
    from_the_tail, "handed out from the tail: blocks are handed out from the tail of the free list"
)
fault(transitions, "allocate", on="layout", rules="BLK-1, BLK-4, BLK-6")(
    kept("free"), "handed out and free: blocks that are handed out stay in the free list"
)


# --- evict ---------------------------------------------------------------------------------------

fault(block_pool, "evict", on="eviction", rules="BLK-5, SPY-PFX-1, BLK-12")(
    lambda _right, pool, _blocks: pool,
    "old content stays: a block that is allocated again can still be found by its old content",
)
fault(block_pool, "evict", on="eviction", rules="BLK-5, BLK-12")(
    kept("cached"),
    "content forgotten block found: evicting forgets the block's key and not the key's block",
)
fault(block_pool, "evict", on="eviction", rules="BLK-5, SPY-PFX-1")(
    kept("keys"),
    "content kept block forgotten: evicting forgets the key's block and not the block's key",
)


# --- touch ---------------------------------------------------------------------------------------

fault(transitions, "touch", on="same prompt", rules="BLK-2")(
    once_held, "second holder not counted: a further holder of a block is not counted"
)
fault(transitions, "touch", on="shared prefix", rules="BLK-1, BLK-4, BLK-6")(
    kept("free"), "revived and free: a cached block that is taken again stays in the free list"
)


# --- release -------------------------------------------------------------------------------------

fault(transitions, "release", on="layout", rules="BLK-4")(
    lambda right, pool, blocks: right(pool, blocks[::-1]),
    "released head first: a table is given back head first",
)
fault(transitions, "release", on="shared prefix", rules="BLK-4, BLK-10")(
    depending(
        lambda pool, _blocks: changed(
            free=lambda free: (*(block for block in free if block not in pool.free), *pool.free)
        )
    ),
    "cached blocks next: cached blocks that are given back are handed out next",
)
fault(transitions, "release", on="same prompt", rules="BLK-2, BLK-4")(
    lambda right, pool, blocks: right(held_once(pool, blocks), blocks),
    "shared blocks freed: blocks are freed although another request holds them",
)
fault(transitions, "release", on="shared prefix", rules="BLK-1, BLK-4, BLK-10, BLK-6, LIF-9")(
    depending(
        lambda pool, _blocks: changed(
            free=lambda free: tuple(block for block in free if block not in pool.keys)
        )
    ),
    "cached blocks lost: cached blocks that are given back are never free again",
)


# --- register ------------------------------------------------------------------------------------


@fault(
    transitions,
    "_cache_full_blocks",
    of="register",
    on="shared prefix",
    rules="SPY-PFX-1, BLK-5, BLK-12",
)
def partial_block_cached(right: Wrong, ctx: Context, pool: BlockPool, sequence: Row) -> Any:
    """The last block of a table is cached before it is full."""
    whole = len(sequence.blocks) * ctx.config.block_size
    return right(ctx, pool, evolve(sequence, computed=whole))


fault(transitions, "register", on="same prompt", rules="SPY-PFX-2, BLK-5, BLK-12")(
    lambda right, pool, blocks, keys: right(pool, blocks, [keys[0]] * len(keys)),
    "keys not chained: all blocks of a prompt are cached under the key of the first",
)


@fault(transitions, "register", on="same prompt", rules="BLK-5, BLK-12")
def earlier_block_forgotten(
    right: Wrong, pool: BlockPool, blocks: Sequence[int], keys: Sequence[BlockKey]
) -> Any:
    """A block with a content that another holds already takes its place in the lookup."""
    return right(evolve(pool, cached=without(pool.cached, *keys)), blocks, keys)


fault(
    transitions, "_cache_full_blocks", of="register", on="same prompt", rules="SPY-PFX-8, BLK-12"
)(lambda _right, _ctx, pool, _row: pool, "nothing cached: full blocks are not cached")
fault(requests, "blake2b", of="register", on="a false prefix", rules="SPY-PFX-10")(
    own_tokens_only, "keys without the prefix: a block's key covers its own tokens only"
)
