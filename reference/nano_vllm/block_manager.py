"""The block manager: free blocks, shared blocks, and the lookup table of cached ones.

Source: nano-vllm, chapters 5 and 7. It keeps its books in the same pool as the other machines,
with differences: blocks are numbered from 0 and handed out first in, first out; the lookup table
(`cached`) names one block for a hash, the last registered; as released its entry stays when that
block is allocated again, so a hit has to be checked.
"""

from collections.abc import Sequence as Seq
from itertools import takewhile

from attrs import evolve

from reference.core.block_pool import empty_pool, touch
from reference.core.frozen_map import updated, without
from reference.core.guards import require
from spec.core.blocks import BlockPool, block_count
from spec.core.requests import BlockKey
from spec.nano_vllm.block_hashes import passes
from spec.nano_vllm.config import Hashing, HitCheck
from spec.nano_vllm.formulas import can_allocate as passes_memory_gate
from spec.nano_vllm.formulas import can_append as has_block_for
from spec.nano_vllm.formulas import lookup_blocks
from spec.nano_vllm.records import Context, Sequence


def new_pool(size: int) -> BlockPool:
    """A pool of `size` blocks, numbered from 0, all free."""
    return empty_pool(range(size))


def block_keys(ctx: Context, sequence: Sequence, count: int) -> Seq[BlockKey]:
    """Hash and tokens of the first `count` blocks, each hash chained to the one before."""
    return ctx.keys.of(sequence.id, count)


# --- questions ----------------------------------------------------------------------------------


def is_hit(pool: BlockPool, key: BlockKey, check: HitCheck) -> bool:
    """True if the lookup table names a block for `key` and the block passes the check."""
    if key not in pool.cached:
        return False
    return passes(pool.keys.get(pool.cached[key][0]), key, check)


def cached_blocks(ctx: Context, pool: BlockPool, sequence: Sequence) -> tuple[int, ...]:
    """The blocks of the longest leading run of hits ("With Prefix Cache: Reuse the Work")."""
    config = ctx.config
    count = lookup_blocks(sequence.prefill_len, config.block_size, config.full_hit)
    keys = block_keys(ctx, sequence, count)
    run = takewhile(lambda key: is_hit(pool, key, config.hit_check), keys)
    return tuple(pool.cached[key][0] for key in run)


def can_allocate(ctx: Context, pool: BlockPool, sequence: Sequence) -> bool:
    """Gate 2: whether the waiting sequence finds its blocks ("BlockManager")."""
    blocks = block_count(sequence.prefill_len, ctx.config.block_size)
    shared = sum(block in pool.references for block in cached_blocks(ctx, pool, sequence))
    return bool(passes_memory_gate(len(pool.free), blocks, shared, ctx.config.memory_gate))


def can_append(ctx: Context, pool: BlockPool, sequence: Sequence) -> bool:
    """Whether the running sequence finds a slot for its newest token ("BlockManager")."""
    length = sequence.computed + 1
    config = ctx.config
    return bool(has_block_for(len(pool.free), length, config.block_size, config.new_block))


# --- answers --------------------------------------------------------------------------------------


def share(pool: BlockPool, blocks: Seq[int], keys: Seq[BlockKey]) -> BlockPool:
    """One more holder for each block that was hit; those that were free are so no longer."""
    return touch(register(pool, blocks, keys), blocks)


def allocated(ctx: Context, pool: BlockPool, count: int) -> tuple[BlockPool, tuple[int, ...]]:
    """The next `count` free blocks; where blocks are hashed once computed, the table forgets them.

    Without that what the lookup table says of them stays.
    """
    if ctx.config.hashing is Hashing.COMPUTED:
        pool = forget(pool, pool.free[:count])
    return take(pool, count)


def forget(pool: BlockPool, blocks: Seq[int]) -> BlockPool:
    """The lookup table without the entries that name one of these blocks."""
    gone = [key for key, named in pool.cached.items() if named[0] in blocks]
    return evolve(pool, cached=without(pool.cached, *gone))


def take(pool: BlockPool, count: int) -> tuple[BlockPool, tuple[int, ...]]:
    """The next `count` free blocks, each with one holder, without hash and tokens."""
    # guard
    require(count <= len(pool.free), "take", "NANO-BLK-1")
    # effect
    blocks = tuple(pool.free[:count])
    taken = evolve(
        pool,
        free=pool.free[count:],
        references=updated(pool.references, dict.fromkeys(blocks, 1)),
        keys=without(pool.keys, *blocks),
    )
    return taken, blocks


def register(pool: BlockPool, blocks: Seq[int], keys: Seq[BlockKey]) -> BlockPool:
    """Give blocks their hash and tokens; from now on the lookup table names them for these."""
    named = {key: (block,) for block, key in zip(blocks, keys, strict=True)}
    return evolve(
        pool,
        keys=updated(pool.keys, dict(zip(blocks, keys, strict=True))),
        cached=updated(pool.cached, named),
    )


def deallocate(pool: BlockPool, blocks: Seq[int]) -> BlockPool:
    """One holder less for each block of a table, the last block first.

    Blocks without a holder go to the end of the free list and keep hash and tokens. A false hit may
    have put a block into a table twice.
    """
    # guard
    require(all(block in pool.references for block in blocks), "deallocate", "NANO-BLK-2")
    # effect
    left = {block: pool.references[block] for block in blocks}
    freed = []
    for block in reversed(blocks):
        left[block] -= 1
        if left[block] == 0:
            freed.append(block)
    held = {block: count for block, count in left.items() if count}
    return evolve(
        pool,
        free=(*pool.free, *freed),
        references=updated(without(pool.references, *freed), held),
    )
