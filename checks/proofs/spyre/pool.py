"""Obligations about the block pool: each block is free or held, and freed by its last holder.

Source: vllm-v1, "KV cache manager"; nano-vllm, "Block manager". The pool is looked at one block at
a time, for the transitions treat blocks alike and each by itself. Of all requests one is looked at,
the one that acts; the others enter through how many of them hold the block, so nothing depends on
how many there are. If every block is free exactly when nobody holds it, the free and the used
blocks make up the pool: conservation is what PRV-POOL-1 to 3 keep.
"""

from attrs import evolve, frozen

from checks.proofs.registry import Integer, Statement, obligation
from spec.core.arithmetic import Number, Truth, every, negate, select, some

_ANY = "any pool, any number of requests and of holders"


@frozen
class Block:
    """A block of the pool: how many hold it, whether it is in the free list, whether cached.

    `is_free` and `is_cached` are 0 or 1.
    """

    references: Number
    is_free: Number
    is_cached: Number


# --- the transitions, of one block; a test holds them equal to those of the pool ------------------


def touched(block: Block) -> Block:
    """One more holder; if it was free it is so no longer. Only cached blocks are found."""
    return evolve(block, references=block.references + 1, is_free=0)


def allocated(_block: Block) -> Block:
    """Handed out from the free list, without its old content."""
    return Block(references=1, is_free=0, is_cached=0)


def registered(block: Block) -> Block:
    """Its content can be found from now on."""
    return evolve(block, is_cached=1)


def released(block: Block) -> Block:
    """One holder less; free if that was the last. Its content can still be found."""
    left = block.references - 1
    return evolve(block, references=left, is_free=select(left == 0, 1, 0))


# --- what is kept -------------------------------------------------------------------------------


def is_accounted_for(block: Block, holders: Number) -> Truth:
    """References count the holders, and the block is free exactly if there are none."""
    return every(
        [
            block.references == holders,
            (block.is_free == 1) == (holders == 0),
            _is_truth(block.is_free),
            _is_truth(block.is_cached),
        ]
    )


def _is_truth(number: Number) -> Truth:
    return some([number == 0, number == 1])


def _block(integer: Integer) -> tuple[Block, Number]:
    """A block, and how many requests hold it beside the one that acts."""
    names = ("references", "is_free", "is_cached")
    return Block(*(integer(name) for name in names)), integer("others")


@obligation(
    "PRV-POOL-1",
    "A block that a hit finds is held by one more request, and free for nobody.",
    bounds=_ANY,
    rules=["BLK-1", "BLK-2"],
)
def touching_keeps_account(integer: Integer) -> Statement:
    """Whether others hold it or it is revived from the free list."""
    block, others = _block(integer)
    return Statement(
        given=[others >= 0, is_accounted_for(block, others), block.is_cached == 1],
        claim=every([is_accounted_for(touched(block), others + 1), touched(block).is_cached == 1]),
    )


@obligation(
    "PRV-POOL-2",
    "A block that is handed out has one holder and nothing of its old content can be found.",
    bounds=_ANY,
    rules=["BLK-1", "BLK-2", "BLK-5"],
)
def handing_out_keeps_account(integer: Integer) -> Statement:
    """It comes from the free list, so nobody held it."""
    block, others = _block(integer)
    return Statement(
        given=[others >= 0, is_accounted_for(block, others), block.is_free == 1],
        claim=every(
            [
                others == 0,
                is_accounted_for(allocated(block), others + 1),
                allocated(block).is_cached == 0,
            ]
        ),
    )


@obligation(
    "PRV-POOL-3",
    "A block that a request gives back is freed exactly by its last holder.",
    bounds=_ANY,
    rules=["BLK-1", "BLK-2", "BLK-6"],
)
def giving_back_keeps_account(integer: Integer) -> Statement:
    """Finished, aborted or preempted."""
    block, others = _block(integer)
    after = released(block)
    return Statement(
        given=[others >= 0, is_accounted_for(block, others + 1)],
        claim=every([is_accounted_for(after, others), (after.is_free == 1) == (others == 0)]),
    )


@obligation(
    "PRV-POOL-4",
    "A block is never handed out while somebody holds it, and never freed twice.",
    bounds=_ANY,
    rules=["BLK-1"],
)
def nobody_takes_a_held_block(integer: Integer) -> Statement:
    """Free and held exclude each other, before and after anything that happens to it."""
    block, others = _block(integer)
    held = is_accounted_for(block, others + 1)
    return Statement(
        given=[others >= 0, held],
        claim=every(
            [
                negate(block.is_free == 1),
                negate(touched(block).is_free == 1),
                negate(registered(block).is_free == 1),
            ]
        ),
    )
