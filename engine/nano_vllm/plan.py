"""Plans of a scheduler step. Making a plan changes no state; `apply` applies it."""

from collections.abc import Sequence
from typing import ClassVar, TypeAlias

from attrs import define

from engine.core.decoding import RequestState
from engine.nano_vllm.running import Batch
from spec.core.records import DECODE, IDLE, PREFILL


@define(eq=False)
class Admission:
    """A request to admit, with its cached blocks and the new blocks behind them."""

    request: RequestState
    hits: tuple[int, ...]
    fresh: tuple[int, ...]


@define(eq=False)
class PrefillPlan:
    """A step that prefills all uncached tokens of every admitted request.

    `refusal`: the rule that ended the admissions, if one did.
    """

    kind: ClassVar[str] = PREFILL
    admissions: Sequence[Admission]
    refusal: str | None = None

    @property
    def samples(self) -> int:
        """Number of tokens that the step samples."""
        return len(self.admissions)


@define(eq=False)
class DecodePlan:
    """A step that computes one token of every row; the batch is empty if no row is left.

    `moves`: in order, a row with its new block, or with None if it is preempted.
    `refusal`: the rule that kept a request from a prefill.
    """

    batch: Batch
    moves: Sequence[tuple[RequestState, int | None]] = ()
    refusal: str | None = None

    @property
    def kind(self) -> str:
        """`decode`, or `idle` for an empty batch."""
        return DECODE if self.batch.rows else IDLE

    @property
    def samples(self) -> int:
        """Number of tokens that the step samples."""
        return len(self.batch.rows)


Plan: TypeAlias = PrefillPlan | DecodePlan
