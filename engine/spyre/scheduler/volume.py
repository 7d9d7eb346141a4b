"""The exact volume rule on arrays: `spec.spyre.admission.exact_volume_holds`, for many rows.

The specification compares every pair of requests; here requests stand in the order of their ends,
so that those that meet an end are a prefix, and only ends that two bounds leave open are looked at
in detail. A test holds the two equal.
"""

import numpy as np
from numpy.typing import NDArray

from engine.core.tensors import Tensor
from spec.core.blocks import block_count
from spec.spyre.padding import last_block_offset, reaches_block_end

Flags = NDArray[np.bool_]


def exact_volume_holds(
    lengths: Tensor, remaining: Tensor, candidate: tuple[int, int], limit: int, block_size: int
) -> bool:
    """Admit if and only if no step of the worst case exceeds the limit.

    `lengths` and `remaining` [rows] are those of the decoding requests, `candidate` the length and
    the remaining tokens of the one that would join, all in tokens, as `spec.spyre.admission.Member`
    has them. Source: lockstep, admission = exact.
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


def surely_exceed(lengths: Tensor, remaining: Tensor, candidates: Tensor, limit: int) -> Flags:
    """Which of many candidates exceed the limit whatever the places in the blocks; [candidates].

    `candidates` [candidates, 2]: their lengths and remaining tokens. At the end of each request the
    longest of those that live as long has reached the tkv of its own tokens, or more; only who
    passes this has to be looked at by `exact_volume_holds`.
    """
    order = np.argsort(-remaining, kind="stable")
    lasts, own_lasts = remaining[order], candidates[:, 1] - 1
    longest = np.maximum.accumulate(lengths[order])
    own = candidates[:, :1]
    # At the ends of the batch: a candidate that lives as long is one row more.
    joined = own_lasts[:, np.newaxis] >= lasts
    rows = np.searchsorted(-lasts, -lasts, side="right")
    reached = np.maximum(longest[rows - 1], np.where(joined, own, 0)) + lasts
    at_other_ends = ((rows + joined) * reached > limit).any(axis=1)
    # At the candidate's own end: with it are the rows that live as long.
    others = np.searchsorted(-lasts, -own_lasts, side="right")
    with_it = np.maximum(np.append(0, longest)[others], own[:, 0])
    at_own_end = (own_lasts > 0) & ((others + 1) * (with_it + own_lasts) > limit)
    return np.asarray(at_other_ends | at_own_end)


def _peak_volumes(
    lengths: Tensor, rows: Tensor, longest: Tensor, steps: Tensor, width: Tensor, block_size: int
) -> Tensor:
    """Peak volume until each end, `spec.spyre.padding.peak_tkv`; [ends, 1] but `lengths`."""
    alive = np.arange(len(lengths)) < rows
    first_at_width = np.maximum((width - 1) * block_size + 1 - longest, 1)
    final = lengths + steps
    fills = alive & reaches_block_end(lengths + first_at_width, final, block_size)
    offset = np.where(alive, last_block_offset(final, block_size), 0).max(axis=1)
    whole_block = fills.any(axis=1)
    tkv = (width[:, 0] - 1) * block_size + np.where(whole_block, block_size, offset)
    return np.asarray(rows[:, 0] * tkv)
