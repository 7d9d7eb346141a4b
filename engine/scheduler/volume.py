"""The exact volume rule on arrays: what `spec.admission.exact_volume_holds` says, for many rows.

The specification compares every pair of requests; here requests stand in the order of their ends,
so that those that meet an end are a prefix, and only ends that two bounds leave open are looked at
in detail. A test holds the two equal.
"""

import numpy as np

from engine.device.inputs import Tensor
from spec.padding import block_count, last_block_offset, reaches_block_end


def exact_volume_holds(
    lengths: Tensor, remaining: Tensor, candidate: tuple[int, int], limit: int, block_size: int
) -> bool:
    """Admit if and only if no step of the worst case exceeds the limit.

    `lengths` and `remaining` [rows] are those of the decoding requests, `candidate` the length and
    the remaining tokens of the one that would join, all in tokens, as `spec.admission.Member` has
    them. Source: lockstep, admission = exact.
    """
    lasts = np.append(remaining, candidate[1] - 1)
    order = np.argsort(-lasts, kind="stable")
    lasts = lasts[order]
    lengths = np.append(lengths, candidate[0])[order]
    rows = np.searchsorted(-lasts, -lasts, side="right")  # who lives as long, ties included
    longest = np.maximum.accumulate(lengths)[rows - 1]
    width = block_count(longest + lasts, block_size)
    may_exceed = (lasts > 0) & (rows * width * block_size > limit)
    if not may_exceed.any():
        return True
    if (rows * (longest + lasts) > limit)[may_exceed].any():
        return False  # the longest row alone reaches that tkv
    rows, longest, steps, width = (
        column[may_exceed, None] for column in (rows, longest, lasts, width)
    )
    return bool((_peak_volumes(lengths, rows, longest, steps, width, block_size) <= limit).all())


def _peak_volumes(
    lengths: Tensor, rows: Tensor, longest: Tensor, steps: Tensor, width: Tensor, block_size: int
) -> Tensor:
    """Peak volume until each end, as `spec.padding.peak_tkv` has it; [ends, 1] but `lengths`."""
    alive = np.arange(len(lengths)) < rows
    first_at_width = np.maximum((width - 1) * block_size + 1 - longest, 1)
    final = lengths + steps
    fills = alive & reaches_block_end(lengths + first_at_width, final, block_size)
    offset = np.where(alive, last_block_offset(final, block_size), 0).max(axis=1)
    whole_block = fills.any(axis=1)
    tkv = (width[:, 0] - 1) * block_size + np.where(whole_block, block_size, offset)
    return np.asarray(rows[:, 0] * tkv)
