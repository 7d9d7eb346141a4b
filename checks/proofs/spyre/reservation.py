"""Obligations about reserved blocks: promises that can be kept.

The argument, for any number of requests. Let `free` be the blocks that no request holds and
`reserved` the sum of what the admitted requests were promised. The invariant is
`0 <= reserved <= free`, and for each admitted request that what it holds and what it was promised
is its worst case. Each transition is shown to keep it: admission (PRV-RES-1), handing out a block
(PRV-RES-2), leaving (PRV-RES-3). From it follows that no request ever lacks a block (PRV-RES-4).
Evicting a cached block changes neither number: it is free before and after. All other requests
enter only through the sum of their promises, so nothing depends on how many there are.
"""

from functools import partial

from checks.proofs.registry import Natural, Positive, Statement
from checks.proofs.spyre.moves import COVERED_UNDER_ANY_RULE, of_every_run
from spec.core.arithmetic import Number, Truth, every
from spec.core.blocks import block_count
from spec.spyre.reservation import may_reserve, promised_blocks, still_promised, worst_case_blocks

BLOCKS = (1, 2, 16, 64, 128)  # tokens; block sizes for which lengths are counted in blocks

_RESERVED = f"reservation=true, {COVERED_UNDER_ANY_RULE}"
_ANY_POOL = "any number of requests, any pool, any prefix hit"
_of_promises = partial(of_every_run, where=_RESERVED)
_of_lengths = partial(
    of_every_run,
    where=_RESERVED,
    bounds=f"every prompt length and maximum output; blocks {', '.join(map(str, BLOCKS))}",
    each=[{"size": size} for size in BLOCKS],
)


def _promises_hold(free: Number, reserved: Number) -> Truth:
    """True if the free blocks cover the promises to all requests."""
    return every([reserved >= 0, reserved <= free])


@_of_promises("PRV-RES-1", bounds=f"{_ANY_POOL}; an admission", rules=["SPY-RES-1", "SPY-RES-2"])
def admission_keeps_promises(
    free: Number, reserved: Number, shared: Natural, revived: Natural, worst_case: Number
) -> Statement:
    """Admission keeps every promise: after the hit is taken and the newcomer's worst case promised,
    the free blocks still cover all promises.
    """
    # Shared cached blocks are held by others; revived ones leave the free list.
    promised = promised_blocks(worst_case, shared + revived)
    return Statement(
        [
            _promises_hold(free - revived, reserved + promised),
            promised > 0,
            shared + revived + promised == worst_case,
        ],
        given=[
            _promises_hold(free, reserved),
            revived <= free,
            shared + revived < worst_case,  # the last token's block is never taken from the cache
            may_reserve(worst_case, shared, free, reserved),
        ],
    )


@_of_promises(
    "PRV-RES-2",
    bounds=f"{_ANY_POOL}; a block that is handed out",
    rules=["SPY-RES-1", "SPY-RES-2", "SPY-RES-3"],
)
def handing_out_keeps_promises(
    free: Number, own: Natural, others: Natural, held: Natural, handed_out: Positive
) -> Statement:
    """A block handed out to a request that was promised it leaves all other promises kept."""
    # `others` is what all other requests were promised.
    left = still_promised(own, handed_out)
    return Statement(
        [
            handed_out <= free,
            left >= 0,
            _promises_hold(free - handed_out, left + others),
            (held + handed_out) + left == held + own,
        ],
        given=[_promises_hold(free, own + others), handed_out <= own],
    )


@_of_promises("PRV-RES-3", bounds=f"{_ANY_POOL}; a request that leaves", rules=["SPY-RES-1"])
def leaving_keeps_promises(free: Number, own: Natural, others: Natural, sole: Natural) -> Statement:
    """A request that leaves, finished or aborted in any phase, leaves all other promises kept."""
    # `sole` blocks were held by no other request and become free; shared ones stay held.
    return Statement(_promises_hold(free + sole, others), [_promises_hold(free, own + others)])


@_of_lengths("PRV-RES-4", rules=["SPY-RES-2", "SPY-RES-3"])
def no_request_lacks_a_block(
    prefill_len: Positive, remaining: Positive, length: Positive, size: int
) -> Statement:
    """A request never needs more blocks than it holds and was promised, at any length that it can
    reach.
    """
    # It writes at most the keys and values of all its tokens but the last.
    most = worst_case_blocks(prefill_len, remaining, size)
    return Statement(block_count(length, size) <= most, [length <= prefill_len + remaining - 1])


@_of_lengths("PRV-RES-5", rules=[])
def reservation_wastes_little(prefill_len: Positive, remaining: Positive, size: int) -> Statement:
    """Reservation sets aside at most one block more than the request can fill."""
    # The block too many is there where prompt and output end exactly with one.
    written = block_count(prefill_len + remaining - 1, size)
    return Statement(worst_case_blocks(prefill_len, remaining, size) <= written + 1)
