"""What a scheduler step is going to do. A plan changes nothing; `apply` carries it out."""

from collections.abc import Sequence
from typing import ClassVar, TypeAlias

from attrs import define

from engine.core.decoding import RequestState
from engine.nano_vllm.running import Batch
from spec.core.records import DECODE, IDLE, PREFILL


@define(eq=False)
class Admission:
    """A request that is let in: the cached blocks that it takes, and those behind them."""

    request: RequestState
    hits: tuple[int, ...]
    fresh: tuple[int, ...]


@define(eq=False)
class PrefillPlan:
    """All tokens that are not cached of every request that is admitted.

    `refusal`: the rule that ended the admissions, if one did.
    """

    kind: ClassVar[str] = PREFILL
    admissions: Sequence[Admission]
    refusal: str | None = None

    @property
    def samples(self) -> int:
        """Tokens that the step samples."""
        return len(self.admissions)


@define(eq=False)
class DecodePlan:
    """One token of every row of the batch, which is empty if none is left to decode.

    `moves`: in order, a row with the block that it is handed, or with None if it is preempted.
    `refusal`: the rule that kept a request from a prefill.
    """

    batch: Batch
    moves: Sequence[tuple[RequestState, int | None]] = ()
    refusal: str | None = None

    @property
    def kind(self) -> str:
        """Whether anything is computed."""
        return DECODE if self.batch.rows else IDLE

    @property
    def samples(self) -> int:
        """Tokens that the step samples."""
        return len(self.batch.rows)


Plan: TypeAlias = PrefillPlan | DecodePlan
