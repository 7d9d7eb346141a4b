"""Obligations about leaving early: an end of sequence or an abort does no harm to later steps.

Source: spyre, "Decode padding" and "Volumetric Constraint". It makes the worst case, in which
every request generates all it may, the case to look at.

How it holds for every batch size. Max-tkv depends on the rows only through the longest and the one
that reaches furthest into its block: two rows stand for a batch (PRV-MON-1A). A further row never
lowers it (PRV-MON-1B), nor the volume (PRV-MON-1C). So a request that leaves early leaves every
later step with at most the volume that it would have had; of several that leave one is looked at
after the other.
"""

from checks.proofs.registry import Integer, Natural, Positive, Statement
from checks.proofs.spyre.rows import (
    LETTERS,
    block_size_choice,
    block_size_words,
    later,
    make_rows,
    positive,
    without_one,
)
from checks.proofs.spyre.scope import obligation
from spec.core.arithmetic import Number
from spec.spyre.padding import last_block_offset, max_tkv, volume


@obligation("PRV-MON-1A", bounds="every batch size, every block size", rules=["SPY-TKV-2"])
def two_rows_stand_for_the_batch(
    longest: Number, furthest: Positive, row: Positive, block_size: Positive
) -> Statement:
    """The longest row and the one that reaches furthest into its block stand for the batch: any
    other row changes no max-tkv.
    """
    two = [longest, furthest]
    return Statement(
        max_tkv([*two, row], block_size) == max_tkv(two, block_size),
        given=[
            longest >= row,
            last_block_offset(row, block_size) <= last_block_offset(furthest, block_size),
        ],
    )


@obligation(
    "PRV-MON-1B",
    bounds="rows that leave, every batch size, every later step, every block size",
    rules=["SPY-VOL-1"],
    is_step=True,
)
def leaving_never_raises_max_tkv(
    longest: Positive, furthest: Positive, leaver: Positive, block_size: Positive
) -> Statement:
    """A batch without one of its rows has no larger max-tkv (the longest and the furthest row stand
    for those that stay).
    """
    # The leaver may itself be the longest, or the one that reaches furthest.
    stay = [longest, furthest]
    return Statement(max_tkv(stay, block_size) <= max_tkv([*stay, leaver], block_size))


@obligation(
    "PRV-MON-1C",
    bounds="rows that leave, every batch size, every tkv",
    rules=["SPY-VOL-1"],
    is_step=True,
)
def fewer_rows_are_no_larger_volume(
    rows: Positive, tkv: Number, tkv_without: Positive
) -> Statement:
    """A row less at no larger max-tkv is no larger volume (last step of the argument)."""
    # `tkv_without`: max-tkv once the row has left.
    return Statement(volume(rows - 1, tkv_without) <= volume(rows, tkv), [tkv_without <= tkv])


def _leaving_is_harmless(
    integer: Integer, rows: int, step: Natural, block_size: Positive
) -> Statement:
    """Head-on for {rows} rows: whichever leaves early, no later step has a larger volume."""
    # Any one of the rows has left, some steps or none before the one that is looked at.
    batch = make_rows(integer, rows)
    everyone, rest = later(batch, step), [later(stay, step) for stay in without_one(batch)]
    limit = volume(rows, max_tkv(everyone, block_size))
    claims = [volume(len(stay), max_tkv(stay, block_size)) <= limit for stay in rest]
    return Statement(claims, positive(*batch))


for _count, _letter in enumerate(LETTERS[:3], start=2):
    obligation(
        f"PRV-MON-2{_letter}",
        bounds=f"rows that leave, every batch of {_count} rows, every later step, "
        f"{block_size_words(_count)}",
        rules=["SPY-VOL-1"],
        is_step=True,
        rows=_count,
        **block_size_choice(_count),
    )(_leaving_is_harmless)
