"""The volume rule of sendnn-inference 2.6.3 for one batch at one moment and many candidates.

Source: sendnn-inference 2.6.3, last-chunk constraints with pausing off; the formulas are those of
`spec/spyre/admission.py`. What it projects for the batch follows from the tkv that it starts from,
and candidates that are projected to reach the same tkv are judged alike: both are worked out once.
"""

from attrs import define, field

from engine.spyre.scheduler.batch import Batch
from spec.spyre.admission import Member, projected_volumes, shipped_future_tkvs


@define(eq=False)
class Projection:
    """The batch `decoding` after a step that returned `last_tkv`."""

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
        """True if this is still the moment."""
        same_batch = decoding is self.decoding and decoding.steps_to_full == self._steps_to_full
        return same_batch and last_tkv == self.last_tkv

    def holds(self, candidate: Member) -> bool:
        """What `spec.spyre.admission.shipped_volume_holds` says of the candidate."""
        start = max(self.last_tkv, candidate.length)
        (future,) = shipped_future_tkvs((), candidate, self.block_size, self.last_tkv)
        if (start, future) not in self._verdicts:
            if start not in self._futures:
                self._futures[start] = self._projected(candidate)
            volumes = projected_volumes(self._futures[start], future)
            self._verdicts[start, future] = max(volumes) <= self.limit
        return self._verdicts[start, future]

    def _projected(self, candidate: Member) -> list[int]:
        """The greatest tkv projected for each decoding request."""
        *futures, _ = shipped_future_tkvs(self._members, candidate, self.block_size, self.last_tkv)
        return futures
