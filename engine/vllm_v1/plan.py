"""Plans of a scheduler step. Making a plan changes no state; `apply` applies it."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from attrs import define, field

from engine.core.tensors import Tensor
from engine.vllm_v1.encoder import EncoderCache, Spans
from engine.vllm_v1.requests import RequestState
from engine.vllm_v1.running import Batch
from engine.vllm_v1.verifying import VerifyingRows
from spec.core.requests import Content

Blocks: TypeAlias = tuple[int, ...]
Tables: TypeAlias = tuple[Blocks, ...]


@define(eq=False)
class GroupBlocks:
    """The blocks of a turn or load in the groups of layers beside the first, by group.

    `hits`: cached blocks that it takes. `fresh`: new blocks. `tables`: its tables in the step.
    `junction`: where the prefix ended that the first group had, if others had less of it.
    `grown_from`: places that tables of states had before they grew, where it counts.
    """

    hits: Tables
    fresh: Tables
    tables: Tables
    junction: int = 0
    grown_from: int = 0


@define(eq=False)
class Turn:
    """A row that is given tokens; lengths in tokens.

    `tokens`: all tokens of the row. `computed`: those computed before the step or found in caches.
    `new`: tokens to compute, the last `drafts` of them drafts to verify. `held`: its blocks before
    the step. `fresh`: new blocks. `awaited`: tokens behind `tokens` that steps in flight sample.
    `encoded`: its spans that the step encodes. `further`: its blocks in the groups of layers beside
    the first, if there are any.
    """

    row: RequestState
    tokens: int
    computed: int
    new: int
    held: Blocks
    fresh: Blocks
    awaited: int = field(default=0, kw_only=True)
    encoded: Spans = field(default=(), kw_only=True)
    further: GroupBlocks | None = field(default=None, kw_only=True)
    drafts: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.drafts = max(self.computed + self.new - self.tokens - self.awaited, 0)

    @property
    def table(self) -> Blocks:
        """Its blocks in the step."""
        return self.held + self.fresh

    @property
    def samples(self) -> int:
        """Tokens that the row samples: none while some of its tokens are not computed."""
        is_whole = self.computed + self.new >= self.tokens + self.awaited
        return self.drafts + 1 if is_whole else 0


@define(eq=False)
class Growth:
    """A row of a batch that is handed blocks; `held`: those that it has."""

    row: RequestState
    held: Blocks
    fresh: Blocks

    @property
    def table(self) -> Blocks:
        """Its blocks in the step."""
        return self.held + self.fresh


@define(eq=False)
class Verification:
    """A step in which each of these rows computes its newest token and all of its drafts.

    `starts`, `ahead`, `room`: as `verifying` has them before the step. `grown`: by place, rows that
    are handed blocks. `full`: places of the rows with a block full of tokens that lookups cannot
    find yet.
    """

    verifying: VerifyingRows
    rows: Sequence[RequestState]
    starts: Tensor
    ahead: int
    room: Tensor
    drafts: int
    grown: Mapping[int, Growth]
    full: Sequence[int]
    _turns: list[Turn] | None = field(default=None, init=False)

    @property
    def tokens(self) -> int:
        """Tokens that the step computes of all these rows, each of which samples as many."""
        return len(self.rows) * (1 + self.drafts)

    @property
    def computed(self) -> Tensor:
        """Tokens that each row has computed before the step, [rows]."""
        return self.starts + self.ahead

    @property
    def turns(self) -> list[Turn]:
        """A turn for each row, made on first use."""
        if self._turns is None:
            self.verifying.write_back()  # turns are read with their rows
            fresh = {place: growth.fresh for place, growth in self.grown.items()}
            held = ((self.starts + self.room) // self.verifying.block_size).tolist()
            self._turns = [
                Turn(
                    row,
                    tokens=computed + 1,
                    computed=computed,
                    new=1 + self.drafts,
                    held=row.blocks[: held[place]],
                    fresh=fresh.get(place, ()),
                )
                for place, (row, computed) in enumerate(
                    zip(self.rows, self.computed.tolist(), strict=True)
                )
            ]
        return self._turns


@define(eq=False)
class Admission(Turn):
    """The turn of a newly admitted request; its drafts, if any, are padding.

    `hits`: cached blocks that it takes. `external`: tokens that the connector brings in the step.
    """

    hits: Blocks
    external: int

    @property
    def table(self) -> Blocks:
        """Its blocks in the step."""
        return self.held + self.hits + self.fresh


@define(eq=False)
class GiveBack:
    """A row that releases blocks of groups of layers that it reads no more; `given`: by group.

    `tables`: those that it has then.
    """

    row: RequestState
    given: Sequence[Blocks]
    tables: Tables


@define(eq=False)
class Preemption:
    """A row that releases its blocks and waits."""

    row: RequestState


@define(eq=False)
class Promotion:
    """A request whose load has ended; a failed one with no computed token releases its blocks."""

    row: RequestState


@define(eq=False)
class LoadStart:
    """A request whose external tokens are fetched; `computed`: with these, and those of `hits`.

    `held`: its blocks before it; `fresh`: blocks that it is handed, behind those of `hits`.
    `further`: its blocks in the groups of layers beside the first, if there are any.
    """

    row: RequestState
    computed: int
    external: int
    held: Blocks
    hits: Blocks
    fresh: Blocks
    further: GroupBlocks | None = None

    @property
    def table(self) -> Blocks:
        """Its blocks as long as it loads."""
        return self.held + self.hits + self.fresh


@define(eq=False)
class Deferral:
    """A request that is passed over until the connector says what it has of it."""

    row: RequestState


Move: TypeAlias = Turn | GiveBack | Preemption | Promotion | LoadStart | Deferral


@define(eq=False)
class Plan:
    """A step.

    - `batch`: the running rows, if all of them decode and each gets a token; `grown`: those that
      are handed blocks for it. `verification`: the running rows, if all of them verify drafts and
      each finds its slots. Else rows have turns of their own.
    - `own_moves`: all else, in the order of the decisions.
    - `own_turns`: of these, those that are computed, in the order of the running queue.
    - `passed`: requests whose load has ended and that wait again, in front.
    - `preempted`: rows, in order.
    - `budget`: tokens that are left of it.
    - `refusal`: the rule that ended the walk over the queues, if one did.
    - `encoder`: the encoder cache after the decisions, if they change it; `evicted`: contents that
      are not cached any more.
    """

    budget: int
    batch: Batch | None = None
    grown: Sequence[Growth] = ()
    own_moves: Sequence[Move] = ()
    own_turns: Sequence[Turn] = ()
    passed: Sequence[RequestState] = ()
    preempted: Sequence[RequestState] = ()
    refusal: str | None = None
    verification: Verification | None = None
    encoder: EncoderCache | None = None
    evicted: Sequence[Content] = ()
    samples: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.samples = len(self.batch.ids) if self.batch is not None else 0
        self.samples += self.verification.tokens if self.verification is not None else 0
        for turn in self.own_turns:
            self.samples += turn.samples

    @property
    def verified_turns(self) -> Sequence[Turn]:
        """A turn of each row that verifies drafts beside all others."""
        return () if self.verification is None else self.verification.turns

    @property
    def moves(self) -> Sequence[Move]:
        """All moves, those of `verification` one by one."""
        return (*self.verified_turns, *self.own_moves)

    @property
    def turns(self) -> Sequence[Turn]:
        """All turns, those of `verification` one by one."""
        return (*self.verified_turns, *self.own_turns)
