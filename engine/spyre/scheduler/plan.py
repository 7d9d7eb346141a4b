"""Plans and outcomes of a scheduler step.

A plan changes nothing: it names the blocks, rows and chunk that the device will be given. Only
`Scheduler.update` applies it, so that a step which the device fails to do leaves no trace. Plans
and outcomes are made in every step, so their classes are not frozen: that would cost a microsecond.
"""

from collections.abc import Sequence
from typing import ClassVar, TypeAlias

from attrs import define, field

from engine.core import scheduler
from engine.core.tensors import Tensor
from engine.spyre.scheduler.requests import Batch, RequestState
from spec.core.records import DECODE, IDLE, PREFILL
from spec.spyre.records import Chunk


@define(eq=False)
class PrefillPlan:
    """One chunk of one request.

    - `chunk`: the tokens to compute; its block table is left out.
    - `held`: the request's blocks before, `new_blocks` those that it gets for the chunk.
    - `hit_blocks`: cached blocks that it found when it was admitted.
    - `is_new`: it is admitted with this step; `held` are then the cached blocks that it takes, and
      `promised` the blocks set aside for it.
    - `refusal`: the rule that kept a request before it from being taken.
    - `given`: requests whose images the encoder is given; so of every plan.
    """

    kind: ClassVar[str] = PREFILL
    request: RequestState
    chunk: Chunk
    held: tuple[int, ...]
    new_blocks: tuple[int, ...]
    hit_blocks: int
    is_new: bool = False
    promised: int = 0
    refusal: str | None = None
    given: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """Tokens that the step samples."""
        return int(self.chunk.is_last)

    @property
    def table(self) -> tuple[int, ...]:
        """The request's blocks once this chunk has its own."""
        return self.held + self.new_blocks


@define(eq=False)
class DecodePlan:
    """One token of every row.

    - `rows`: the batch that decodes; `paused`: the rows that are left out.
    - `tkv`: of the step, in tokens.
    - `resumed`, `newly_paused`: requests that were paused and decode again, and the reverse.
    - `preempted`: requests that lose everything to make room for new blocks, in order.
    - `growing`: rows whose next token starts a block, and `new_blocks`, theirs.
    - `left_padding` [rows]: in tokens, None where it stays; `jumps`: rows whose padding changes.
    - `refusal`: the rule that kept a request from a prefill.
    """

    kind: ClassVar[str] = DECODE
    rows: Batch
    paused: Batch
    tkv: int
    resumed: tuple[RequestState, ...] = ()
    newly_paused: tuple[RequestState, ...] = ()
    preempted: tuple[RequestState, ...] = ()
    growing: Sequence[int] = ()
    new_blocks: tuple[int, ...] = ()
    left_padding: Tensor | None = None
    jumps: int = 0
    refusal: str | None = None
    given: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """Tokens that the step samples."""
        return len(self.rows)


@define(eq=False)
class IdlePlan:
    """No request may compute anything; `refusal` is the rule that kept one from a prefill.

    `paused`: all admitted rows, where none fits the limit; `newly_paused`: those that decoded.
    """

    kind: ClassVar[str] = IDLE
    samples: ClassVar[int] = 0
    refusal: str | None = None
    paused: Batch = field(factory=Batch.empty)
    newly_paused: tuple[RequestState, ...] = ()
    given: tuple[str, ...] = ()


Plan: TypeAlias = PrefillPlan | DecodePlan | IdlePlan


@define(eq=False)
class Outcome(scheduler.Outcome):
    """What a step did; `tkv`: of the step, in tokens."""

    tkv: int = 0
