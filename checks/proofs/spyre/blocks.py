"""Obligations about reserved blocks: promises that can be kept.

The argument, for any number of requests. Let `free` be the blocks that nobody holds and
`reserved` the sum of what the admitted requests were promised. The invariant is
`0 <= reserved <= free`, and for each admitted request that what it holds and what it was promised
is its worst case. Each transition is shown to keep it: admission (PRV-RES-1), handing out a block
(PRV-RES-2), leaving (PRV-RES-3). From it follows that nobody ever lacks a block (PRV-RES-4).
Evicting a cached block changes neither number: it is free before and after. All other requests
enter only through the sum of their promises, so nothing depends on how many there are.
"""

from checks.proofs.registry import Integer, Statement, obligation
from spec.core.arithmetic import Number, Truth, every
from spec.core.blocks import block_count
from spec.spyre.reservation import may_reserve, promised_blocks, still_promised, worst_case_blocks

BLOCKS = (1, 2, 16, 64, 128)  # tokens; block sizes for which lengths are counted in blocks
_ANY = "any number of requests, any pool, any prefix hit"


def _promises_hold(free: Number, reserved: Number) -> Truth:
    """What is promised to all requests together is there."""
    return every([reserved >= 0, reserved <= free])


@obligation(
    "PRV-RES-1",
    "Admission keeps every promise: after the hit is taken and the newcomer's worst case promised, "
    "the free blocks still cover all promises.",
    bounds=_ANY,
    rules=["SPY-RES-1", "SPY-RES-2"],
)
def admission_keeps_promises(integer: Integer) -> Statement:
    """Shared cached blocks are held by others; revived ones leave the free list."""
    free, reserved = integer("free"), integer("reserved")
    shared, revived = integer("shared"), integer("revived")
    worst_case = integer("worst_case")
    promised = promised_blocks(worst_case, shared + revived)
    return Statement(
        given=[
            _promises_hold(free, reserved),
            shared >= 0,
            revived >= 0,
            revived <= free,
            shared + revived < worst_case,  # the last token's block is never taken from the cache
            may_reserve(worst_case, shared, free, reserved),
        ],
        claim=every(
            [
                _promises_hold(free - revived, reserved + promised),
                promised > 0,
                shared + revived + promised == worst_case,
            ]
        ),
    )


@obligation(
    "PRV-RES-2",
    "A block handed out to a request that was promised it leaves all other promises kept.",
    bounds=_ANY,
    rules=["SPY-RES-1", "SPY-RES-2", "SPY-RES-3"],
)
def handing_out_keeps_promises(integer: Integer) -> Statement:
    """`others` is what everybody else was promised."""
    free, own, others = integer("free"), integer("own"), integer("others")
    held, count = integer("held"), integer("handed_out")
    left = still_promised(own, count)
    return Statement(
        given=[
            own >= 0,
            others >= 0,
            held >= 0,
            _promises_hold(free, own + others),
            count >= 1,
            count <= own,
        ],
        claim=every(
            [
                count <= free,
                left >= 0,
                _promises_hold(free - count, left + others),
                (held + count) + left == held + own,
            ]
        ),
    )


@obligation(
    "PRV-RES-3",
    "A request that leaves, finished or aborted in any phase, leaves all other promises kept.",
    bounds=_ANY,
    rules=["SPY-RES-1", "LIF-5"],
)
def leaving_keeps_promises(integer: Integer) -> Statement:
    """`sole` blocks were held by nobody else and become free; shared ones stay held."""
    free, own, others, sole = (integer(name) for name in ("free", "own", "others", "sole"))
    return Statement(
        given=[own >= 0, others >= 0, sole >= 0, _promises_hold(free, own + others)],
        claim=_promises_hold(free + sole, others),
    )


@obligation(
    "PRV-RES-4",
    "A request never needs more blocks than it holds and was promised, at any length that it "
    "can reach.",
    bounds=f"every prompt length and maximum output; blocks {', '.join(map(str, BLOCKS))}",
    rules=["SPY-RES-3", "BLK-8"],
)
def nobody_lacks_a_block(integer: Integer) -> Statement:
    """It writes at most the keys and values of all its tokens but the last."""
    prefill_len, remaining = integer("prefill_len"), integer("remaining")
    length = integer("length")
    return Statement(
        given=[
            prefill_len >= 1,
            remaining >= 1,
            length >= 1,
            length <= prefill_len + remaining - 1,
        ],
        claim=every(
            block_count(length, size) <= worst_case_blocks(prefill_len, remaining, size)
            for size in BLOCKS
        ),
    )


@obligation(
    "PRV-RES-5",
    "Reservation sets aside at most one block more than the request can fill.",
    bounds=f"every prompt length and maximum output; blocks {', '.join(map(str, BLOCKS))}",
    rules=["SPY-RES-2"],
)
def reservation_wastes_little(integer: Integer) -> Statement:
    """The block too many is there where prompt and output end exactly with one."""
    prefill_len, remaining = integer("prefill_len"), integer("remaining")

    def claim(size: int) -> Truth:
        written = block_count(prefill_len + remaining - 1, size)
        return worst_case_blocks(prefill_len, remaining, size) <= written + 1

    return Statement(given=[prefill_len >= 1, remaining >= 1], claim=every(map(claim, BLOCKS)))
