"""Obligations about leaving early: an end of sequence or an abort does no harm to later steps.

Source: spyre, "Decode padding" and "Volumetric Constraint". It makes the worst case, in which
every request generates all it may, the case to look at.

How it holds for every batch size. Max-tkv depends on the rows only through the longest and the one
that reaches furthest into its block: two rows stand for a batch (PRV-MON-1A). A further row never
lowers it (PRV-MON-1B), nor the volume (PRV-MON-1C). So whoever leaves early leaves every later
step with at most the volume that it would have had; of several leavers one is looked at after the
other.
"""

from functools import partial

from checks.proofs.registry import Integer, Statement, obligation
from checks.proofs.spyre.rows import (
    block_size_for,
    block_sizes_for,
    is_no_wider,
    later,
    max_tkv_lies_in_the_last_block,
    positive,
    rows_of,
    without_one,
)
from spec.core.arithmetic import every
from spec.spyre.padding import last_block_offset, max_tkv, volume


@obligation(
    "PRV-MON-1A",
    "The longest row and the one that reaches furthest into its block stand for the batch: any "
    "other row changes no max-tkv.",
    bounds="every batch size, every block size",
    rules=["SPY-TKV-2"],
)
def two_rows_stand_for_the_batch(integer: Integer) -> Statement:
    """First step of the argument for every batch size."""
    longest, furthest, row = integer("longest"), integer("furthest"), integer("row")
    block_size = integer("block_size")
    reach = last_block_offset(furthest, block_size)
    two = [longest, furthest]
    return Statement(
        given=[
            *positive(block_size, row, furthest),
            longest >= furthest,
            longest >= row,
            last_block_offset(row, block_size) <= reach,
        ],
        claim=max_tkv([*two, row], block_size) == max_tkv(two, block_size),
    )


@obligation(
    "PRV-MON-1B",
    "A batch without one of its rows has no larger max-tkv (the longest and the furthest row "
    "stand for those that stay).",
    bounds="every batch size, every later step, every block size",
    rules=["SPY-TKV-2", "SPY-VOL-1"],
)
def leaving_never_raises_max_tkv(integer: Integer) -> Statement:
    """The leaver may itself be the longest, or the one that reaches furthest."""
    stay, leaver = [integer("longest"), integer("furthest")], integer("leaver")
    block_size = integer("block_size")
    return Statement(
        given=positive(block_size, *stay, leaver),
        claim=max_tkv(stay, block_size) <= max_tkv([*stay, leaver], block_size),
    )


@obligation(
    "PRV-MON-1C",
    "A row less at no larger max-tkv is no larger volume (last step of the argument).",
    bounds="every batch size, every tkv",
    rules=["SPY-VOL-1"],
)
def fewer_rows_are_no_larger_volume(integer: Integer) -> Statement:
    """`tkv_without`: max-tkv once the row has left."""
    rows, tkv, without = integer("rows"), integer("tkv"), integer("tkv_without")
    return Statement(
        given=[*positive(rows, without), without <= tkv],
        claim=volume(rows - 1, without) <= volume(rows, tkv),
    )


def _leaving_is_harmless(integer: Integer, rows: int) -> Statement:
    """Any one of the rows has left, some steps or none before the one that is looked at."""
    batch, steps, block_size = (
        rows_of(integer, rows),
        integer("steps"),
        block_size_for(integer, rows),
    )
    everyone, rest = later(batch, steps), [later(stay, steps) for stay in without_one(batch)]
    limit = volume(rows, max_tkv(everyone, block_size))
    volumes = [volume(len(stay), max_tkv(stay, block_size)) for stay in rest]
    return Statement(
        given=[*positive(block_size, *batch), steps >= 0],
        known=[
            *(is_no_wider(stay, everyone, block_size) for stay in rest),  # PRV-PEAK-1C
            *(max_tkv_lies_in_the_last_block(one, block_size) for one in (everyone, *rest)),  # 1D
        ],
        claim=every(less <= limit for less in volumes),
    )


for _letter, _count in (("A", 2), ("B", 3), ("C", 4)):
    obligation(
        f"PRV-MON-2{_letter}",
        f"Head-on for {_count} rows: whichever leaves early, no later step has a larger volume.",
        bounds=f"every batch of {_count} rows, every later step, {block_sizes_for(_count)}",
        rules=["SPY-VOL-1"],
    )(partial(_leaving_is_harmless, rows=_count))
