"""The last-chunk conditions, which admit a request to the decode batch, on its arrays.

Source: spyre, "Last-chunk constraints"; the formulas are those of `spec/spyre/admission.py`.
"""

import numpy as np
from attrs import define, field

from engine.core.tensors import Flags, Tensor
from engine.spyre.scheduler.requests import Batch, RequestState, Shape
from spec.core.blocks import block_count
from spec.spyre.admission import (
    Member,
    projected_volumes,
    shipped_candidate_future,
    shipped_row_futures,
)
from spec.spyre.config import SpyreConfig
from spec.spyre.padding import last_block_offset, reaches_block_end
from spec.spyre.variants import Joining

_EXACT, _SHIPPED = "SPY-VOL-4", "SPY-VOL-3"  # the conditions that are judged incrementally


class LastChunk:
    """The last-chunk conditions of one configuration, those of its admission variant.

    The projection of the current batch is kept and shared by all candidates.
    """

    def __init__(self, config: SpyreConfig) -> None:
        """The conditions as the configuration names them."""
        self._config = config
        self._conditions = config.variant.conditions
        self._fast = {_EXACT: self._exact_volume_holds, _SHIPPED: self._shipped_volume_holds}
        self._projection: Projection | None = None

    def refusal(self, decoding: Batch, last_tkv: int, request: RequestState) -> str | None:
        """The rule that refuses the request, or None.

        `last_tkv`: of the step before, in tokens. A condition for which the engine has no faster
        way is judged as the specification says it.
        """
        if len(decoding) >= self._config.max_num_seqs:
            return "SPY-ADM-3"
        if self._config.pausing:
            return None
        joining: Joining | None = None
        for condition in self._conditions:
            fast = self._fast.get(condition.rule)
            if fast is not None:
                holds = fast(decoding, last_tkv, request.shape)
            else:
                joining = joining or self._joining(decoding, last_tkv, request.shape)
                holds = bool(condition.holds(joining))
            if not holds:
                return condition.rule
        return None

    def refused_shapes(self, decoding: Batch, shapes: Tensor) -> set[Shape]:
        """Of these shapes, [shapes, 2], those that are refused for certain."""
        if self._config.pausing or all(condition.rule != _EXACT for condition in self._conditions):
            return set()
        limit = self._config.max_batch_tkv_limit
        exceeding = surely_exceed(decoding.computed, decoding.remaining(), shapes, limit)
        return {(length, remaining) for length, remaining in shapes[exceeding].tolist()}

    def _joining(self, decoding: Batch, last_tkv: int, shape: Shape) -> Joining:
        """The batch and the candidate as the specification describes them."""
        return Joining(
            decoding=decoding.as_members(),
            candidate=Member(*shape),
            limit=self._config.max_batch_tkv_limit,
            max_model_len=self._config.max_model_len,
            block_size=self._config.block_size,
            last_tkv=last_tkv,
        )

    def _exact_volume_holds(self, decoding: Batch, _last_tkv: int, shape: Shape) -> bool:
        limit, size = self._config.max_batch_tkv_limit, self._config.block_size
        return exact_volume_holds(decoding.computed, decoding.remaining(), shape, limit, size)

    def _shipped_volume_holds(self, decoding: Batch, last_tkv: int, shape: Shape) -> bool:
        limit, size = self._config.max_batch_tkv_limit, self._config.block_size
        if self._projection is None or not self._projection.is_of(decoding, last_tkv):
            self._projection = Projection(decoding, last_tkv, size, limit)
        return self._projection.holds(Member(*shape))


# --- admission = shipped ------------------------------------------------------------------------


@define(eq=False)
class Projection:
    """The volumes projected for the batch `decoding` after a step that returned `last_tkv`.

    The projection of the batch depends only on its first tkv; candidates projected to the same tkv
    get the same verdict. Both are computed once.
    Source: sendnn-inference 2.6.3, last-chunk constraints with pausing off.
    """

    decoding: Batch
    last_tkv: int
    block_size: int
    limit: int
    _steps_to_full: int = field(init=False)
    _members: list[Member] = field(init=False)
    _futures: dict[int, list[int]] = field(factory=dict, init=False)
    _verdicts: dict[tuple[int, int], bool] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._steps_to_full = self.decoding.steps_to_full
        self._members = self.decoding.as_members()

    def is_of(self, decoding: Batch, last_tkv: int) -> bool:
        """True if batch and tkv have not changed since."""
        same_batch = decoding is self.decoding and decoding.steps_to_full == self._steps_to_full
        return same_batch and last_tkv == self.last_tkv

    def holds(self, candidate: Member) -> bool:
        """What `spec.spyre.admission.shipped_volume_holds` says of the candidate."""
        start = max(self.last_tkv, candidate.length)
        future = shipped_candidate_future(candidate, self.block_size, self.last_tkv)
        if (start, future) not in self._verdicts:
            if start not in self._futures:
                self._futures[start] = self._projected(candidate)
            volumes = projected_volumes(self._futures[start], future)
            self._verdicts[start, future] = max(volumes) <= self.limit
        return self._verdicts[start, future]

    def _projected(self, candidate: Member) -> list[int]:
        """The greatest tkv projected for each decoding request."""
        return [*shipped_row_futures(self._members, candidate, self.block_size, self.last_tkv)]


# --- admission = exact --------------------------------------------------------------------------


def exact_volume_holds(
    lengths: Tensor, remaining: Tensor, candidate: tuple[int, int], limit: int, block_size: int
) -> bool:
    """Admit if and only if no step of the worst case exceeds the limit.

    `lengths` and `remaining` [rows] are those of the decoding requests, `candidate` the length and
    the remaining tokens of the one that would join, all in tokens. It is
    `spec.spyre.admission.exact_volume_holds` for many rows: that compares every pair of requests;
    here they stand in the order of their ends, so that those alive at an end are a prefix, and only
    ends that two bounds leave open are looked at in detail. Source: lockstep, admission = exact.
    """
    lasts = np.append(remaining, candidate[1] - 1)
    order = np.argsort(-lasts, kind="stable")
    lasts = lasts[order]
    lengths = np.append(lengths, candidate[0])[order]
    rows = np.searchsorted(-lasts, -lasts, side="right")  # alive until that step, ties included
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
    """Candidates that exceed the limit at any position in their blocks; [candidates].

    `candidates` [candidates, 2]: their lengths and remaining tokens. At the end of each request the
    longest of those that live as long has reached the tkv of its own tokens, or more; only those
    that pass this have to be looked at by `exact_volume_holds`.
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
