"""Obligations about the block pool: each block is free or held, and freed by its last holder.

Source: vllm-v1, "KV cache manager"; nano-vllm, "Block manager". The obligations speak of one block,
since the transitions treat all blocks alike and separately. Before anything is proven, every
transition in every state of a small pool is compared with the transitions of one block here. The
obligations speak of the acting request; the others matter only through the number of them that
hold the block, so that nothing depends on the number of requests. If every block is free exactly
when no request holds it, free and used blocks make up the pool: PRV-POOL-1 to 3 keep this.
"""

from collections.abc import Iterator
from functools import partial

from attrs import evolve, frozen

from checks.proofs import registry
from checks.proofs.registry import Natural, Statement
from checks.proofs.spyre.scope import SCOPE
from reference.core import block_pool as pool
from spec.core.arithmetic import Number, Truth, every, negate, select, some
from spec.core.blocks import BlockPool


@frozen
class Block:
    """A block of the pool: its number of holders, and whether it is free and cached.

    `is_free` and `is_cached` are 0 or 1.
    """

    references: Number
    is_free: Number
    is_cached: Number


# --- the transitions, of one block ----------------------------------------------------------------


def touched(block: Block) -> Block:
    """The block with one more holder, and not free."""
    return evolve(block, references=block.references + 1, is_free=0)


def allocated(_block: Block) -> Block:
    """The block after it leaves the free list, without its old content."""
    return Block(references=1, is_free=0, is_cached=0)


def registered(block: Block) -> Block:
    """The block after its content is cached."""
    return evolve(block, is_cached=1)


def released(block: Block) -> Block:
    """The block with one holder less; free if that was the last. It stays cached."""
    left = block.references - 1
    return evolve(block, references=left, is_free=select(left == 0, 1, 0))


# --- the pool of the machines, block by block -----------------------------------------------------

BLOCKS, HOLDERS = 3, 2  # of the compared pool, and the largest number of holders
KEYS = (b"one", b"other")


def seen(block_pool: BlockPool, block: int) -> Block:
    """The state of one block of the pool."""
    return Block(
        references=block_pool.references.get(block, 0),
        is_free=int(block in block_pool.free),
        is_cached=int(block in block_pool.keys),
    )


def happening(block_pool: BlockPool) -> Iterator[tuple[str, int, BlockPool, Block]]:
    """Every transition of the pool: its name, its block, the pool and the block after it."""
    for block in block_pool.keys:
        if block_pool.references.get(block, 0) < HOLDERS:
            yield "touch", block, pool.touch(block_pool, [block]), touched(seen(block_pool, block))
    for block in tuple(block_pool.free)[:1]:
        yield "allocate", block, pool.allocate(block_pool, 1)[0], allocated(seen(block_pool, block))
    for block, _ in block_pool.references.items():
        yield "release", block, pool.release(block_pool, [block]), released(seen(block_pool, block))
        for key in KEYS if block not in block_pool.keys else ():
            after = pool.register(block_pool, [block], [key])
            yield "register", block, after, registered(seen(block_pool, block))


def pool_stale() -> str | None:
    """Why evidence about blocks is stale; None if the pool changes each block as above."""
    pending = [pool.new_pool(BLOCKS)]
    reached = set(pending)
    while pending:
        block_pool = pending.pop()
        for name, block, after, expected in happening(block_pool):
            for each in range(1, BLOCKS + 1):
                own = expected if each == block else seen(block_pool, each)
                if seen(after, each) != own:
                    return f"{name} of block {block} makes {seen(after, each)} of {each}, not {own}"
            if after not in reached:
                reached.add(after)
                pending.append(after)
    return SCOPE.stale()


# --- what is kept -------------------------------------------------------------------------------


def is_consistent(block: Block, holders: Number) -> Truth:
    """True if references count the holders and the block is free exactly if there are none."""
    return every(
        [
            block.references == holders,
            (block.is_free == 1) == (holders == 0),
            *(some([number == 0, number == 1]) for number in (block.is_free, block.is_cached)),
        ]
    )


# `others`: how many requests hold the block beside the one that acts.
_of_a_block = partial(registry.obligation, basis=pool_stale)
_ANY_POOL = "any pool, any number of requests and of holders"


@_of_a_block(
    "PRV-POOL-1", bounds=f"{_ANY_POOL}; a block that a hit finds", rules=["BLK-1", "BLK-2"]
)
def touching_keeps_account(block: Block, others: Natural) -> Statement:
    """A block that a hit finds is held by one more request, and is not free."""
    # Whether others hold it or it is revived from the free list.
    after = touched(block)
    return Statement(
        [is_consistent(after, others + 1), after.is_cached == 1],
        given=[is_consistent(block, others), block.is_cached == 1],
    )


@_of_a_block(
    "PRV-POOL-2",
    bounds=f"{_ANY_POOL}; a block that is handed out",
    rules=["BLK-1", "BLK-2", "BLK-5"],
)
def handing_out_keeps_account(block: Block, others: Natural) -> Statement:
    """A block that is handed out has one holder and nothing of its old content can be found."""
    # It comes from the free list, so no request held it.
    after = allocated(block)
    return Statement(
        [others == 0, is_consistent(after, others + 1), after.is_cached == 0],
        given=[is_consistent(block, others), block.is_free == 1],
    )


@_of_a_block(
    "PRV-POOL-3",
    bounds=f"{_ANY_POOL}; a block that is given back",
    rules=["BLK-1", "BLK-2", "BLK-6"],
)
def giving_back_keeps_account(block: Block, others: Natural) -> Statement:
    """A block that a request gives back is freed exactly by its last holder."""
    # Whether the request has finished, is aborted or preempted.
    after = released(block)
    return Statement(
        [is_consistent(after, others), (after.is_free == 1) == (others == 0)],
        given=[is_consistent(block, others + 1)],
    )


@_of_a_block("PRV-POOL-4", bounds=f"{_ANY_POOL}; a block that a request holds", rules=["BLK-1"])
def a_held_block_is_never_free(block: Block, others: Natural) -> Statement:
    """A block is never handed out while a request holds it, and never freed twice."""
    # Free and held exclude each other, before and after anything that happens to it.
    seen = (block, touched(block), registered(block))
    return Statement(
        [negate(state.is_free == 1) for state in seen], given=[is_consistent(block, others + 1)]
    )
