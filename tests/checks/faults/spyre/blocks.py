"""Faults of the block pool: hand out, share, cache, evict, give back."""

from collections.abc import Sequence
from typing import Any

from attrs import evolve

from reference.core import block_pool
from reference.spyre import machine, transitions
from spec.core import requests
from spec.core.blocks import BlockPool
from spec.core.requests import BlockKey
from spec.spyre.records import Context
from spec.spyre.state import Sequence as Row
from tests.checks.faults.planting import Right
from tests.checks.faults.spyre.table import fault

# --- new_pool, allocate --------------------------------------------------------------------------


@fault(machine, "new_pool", on="layout", caught_by="BLK-3")
def block_zero_in_the_pool(right: Right, size: int) -> Any:
    """The pool starts with block 0."""
    return evolve(right(size), free=tuple(range(size)))


@fault(transitions, "allocate", on="layout", caught_by="BLK-3, BLK-1, BLK-4, SPY-PAD-5")
def block_zero_handed_out(right: Right, pool: BlockPool, count: int) -> Any:
    """Block 0 is handed out before all others."""
    return right(evolve(pool, free=(0, *pool.free)), count)


@fault(transitions, "allocate", on="layout", caught_by="BLK-4")
def handed_out_from_the_tail(right: Right, pool: BlockPool, count: int) -> Any:
    """Blocks are handed out from the tail of the free list."""
    pool, blocks = right(evolve(pool, free=pool.free[::-1]), count)
    return evolve(pool, free=pool.free[::-1]), blocks


@fault(transitions, "allocate", on="layout", caught_by="BLK-1, BLK-4")
def handed_out_and_free(right: Right, pool: BlockPool, count: int) -> Any:
    """Blocks that are handed out stay in the free list."""
    taken, blocks = right(pool, count)
    return evolve(taken, free=pool.free), blocks


# --- evict ---------------------------------------------------------------------------------------


@fault(block_pool, "evict", on="eviction", caught_by="SPY-PFX-1")
def old_content_stays(_right: Right, pool: BlockPool, _blocks: Sequence[int]) -> BlockPool:
    """A block that is handed out anew can still be found by its old content."""
    return pool


@fault(block_pool, "evict", on="eviction", caught_by="BLK-5")
def content_forgotten_block_found(right: Right, pool: BlockPool, blocks: Sequence[int]) -> Any:
    """Evicting forgets the block's key and not the key's block."""
    return evolve(right(pool, blocks), cached=pool.cached)


@fault(block_pool, "evict", on="eviction", caught_by="BLK-5, SPY-PFX-1")
def content_kept_block_forgotten(right: Right, pool: BlockPool, blocks: Sequence[int]) -> Any:
    """Evicting forgets the key's block and not the block's key."""
    return evolve(right(pool, blocks), keys=pool.keys)


# --- touch ---------------------------------------------------------------------------------------


@fault(transitions, "touch", on="same prompt", caught_by="BLK-2")
def second_holder_not_counted(right: Right, pool: BlockPool, blocks: Sequence[int]) -> Any:
    """Whoever takes a block that is held already is not counted."""
    once = pool.references.set(dict.fromkeys(blocks, 1))
    return evolve(right(pool, blocks), references=once)


@fault(transitions, "touch", on="shared prefix", caught_by="BLK-1, BLK-4")
def revived_and_free(right: Right, pool: BlockPool, blocks: Sequence[int]) -> Any:
    """A cached block that is taken again stays in the free list."""
    return evolve(right(pool, blocks), free=pool.free)


# --- release -------------------------------------------------------------------------------------


@fault(transitions, "release", on="layout", caught_by="BLK-4")
def released_head_first(right: Right, pool: BlockPool, blocks: Sequence[int]) -> Any:
    """A table is given back head first."""
    return right(pool, blocks[::-1])


@fault(transitions, "release", on="shared prefix", caught_by="BLK-4, BLK-10")
def cached_blocks_next(right: Right, pool: BlockPool, blocks: Sequence[int]) -> BlockPool:
    """Cached blocks that are given back are handed out next."""
    given_back: BlockPool = right(pool, blocks)
    new = [block for block in given_back.free if block not in pool.free]
    return evolve(given_back, free=(*new, *pool.free))


@fault(transitions, "release", on="same prompt", caught_by="BLK-2, BLK-4")
def shared_blocks_freed(right: Right, pool: BlockPool, blocks: Sequence[int]) -> Any:
    """Blocks are freed although somebody else holds them."""
    alone = pool.references.set(dict.fromkeys(blocks, 1))
    return right(evolve(pool, references=alone), blocks)


@fault(transitions, "release", on="shared prefix", caught_by="BLK-1, BLK-4, BLK-10")
def cached_blocks_lost(right: Right, pool: BlockPool, blocks: Sequence[int]) -> BlockPool:
    """Cached blocks that are given back are never free again."""
    given_back: BlockPool = right(pool, blocks)
    plain = tuple(block for block in given_back.free if block not in pool.keys)
    return evolve(given_back, free=plain)


# --- register ------------------------------------------------------------------------------------


@fault(transitions, "_cache_full_blocks", of="register", on="shared prefix", caught_by="SPY-PFX-1")
def partial_block_cached(right: Right, ctx: Context, pool: BlockPool, sequence: Row) -> Any:
    """The last block of a table is cached before it is full."""
    whole = len(sequence.blocks) * ctx.config.block_size
    return right(ctx, pool, evolve(sequence, computed=whole))


@fault(transitions, "register", on="same prompt", caught_by="SPY-PFX-2")
def keys_not_chained(
    right: Right, pool: BlockPool, blocks: Sequence[int], keys: Sequence[BlockKey]
) -> Any:
    """All blocks of a prompt are cached under the key of the first."""
    return right(pool, blocks, [keys[0]] * len(keys))


@fault(transitions, "register", on="same prompt", caught_by="BLK-5")
def earlier_block_forgotten(
    right: Right, pool: BlockPool, blocks: Sequence[int], keys: Sequence[BlockKey]
) -> Any:
    """A block with a content that another holds already takes its place in the lookup."""
    return right(evolve(pool, cached=pool.cached.without(*keys)), blocks, keys)


@fault(transitions, "_cache_full_blocks", of="register", on="same prompt", caught_by="SPY-PFX-8")
def nothing_cached(_right: Right, _ctx: Context, pool: BlockPool, _sequence: Row) -> BlockPool:
    """Full blocks are not cached."""
    return pool


@fault(requests, "blake2b", of="register", on="a false prefix", caught_by="SPY-PFX-10")
def keys_without_the_prefix(right: Right, data: bytes, *, digest_size: int) -> Any:
    """A block's key covers its own tokens only."""
    return right(data[-2 * 8 :], digest_size=digest_size)
