"""Records of the vLLM V1 scheduler: its state between two steps, and a step.

There are no phases: a request has tokens, and some of them are computed. All classes are immutable,
hashable and comparable.
"""

from collections import abc
from collections.abc import Iterable, Mapping, Set
from enum import StrEnum
from typing import TypeAlias

from attrs import field, frozen

from spec.core import records
from spec.core.blocks import BlockPool
from spec.core.records import DECODE, HISTORY, IDLE, PREFILL, StepRecord
from spec.core.requests import BlockKeys, Content, Request
from spec.vllm_v1.config import VllmV1Config

Unfilled: TypeAlias = tuple[tuple[int, int], ...]  # blocks, and how many tokens are there


class Load(StrEnum):
    """The state of an asynchronous load of external keys and values."""

    NONE = "none"
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"


@frozen
class Sequence:
    """A request inside the scheduler; lengths in tokens.

    `computed`: tokens whose keys and values are in the cache, those that steps in flight compute
    included. `generated`: tokens sampled so far. `drafts`: proposed and not yet verified.
    `placeholders`: tokens that steps in flight sample for it, or verify as drafts; it is not known
    which, nor how many.
    `arrival`: how many arrived before it, kept only where the scheduling looks at it. `prefilling`:
    its last step left some of its tokens uncomputed. `load`: of its external keys and values.
    `sending`: it has left, and the connector sends its keys and values. `tables`: its blocks in the
    groups of layers beside the first, whose are `blocks`; the null block where there is none.
    `junction`: where the prefix ended that the first group had cached, if others had less of it.
    `grown_from`: where states may be left behind, how many places its tables of states had before
    they grew last.
    """

    id: str
    prompt_len: int
    arrival: int = 0
    computed: int = 0
    generated: int = 0
    drafts: int = 0
    placeholders: int = 0
    blocks: tuple[int, ...] = ()
    prefilling: bool = False
    load: Load = Load.NONE
    sending: bool = False
    tables: tuple[tuple[int, ...], ...] = ()
    junction: int = 0
    grown_from: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and generated tokens."""
        return self.prompt_len + self.generated

    @property
    def decodes(self) -> bool:
        """True if only its newest token, known or not, is not computed."""
        sampled = self.generated + self.placeholders
        return sampled > 0 and self.computed == self.prompt_len + sampled - 1


@frozen
class GivenBack:
    """The blocks of a request that has left or was preempted, and that are not free yet."""

    id: str
    blocks: tuple[int, ...]


@frozen
class Flight:
    """A step in flight: it is planned, and its results are not known.

    `scheduled`: tokens that it computes, by request. `samples`: the requests that it samples a
    token for. `drafts`: how many of the tokens verify drafts, by request; those of `padded` were
    never made. `external`: tokens that the connector brings in it, by request. `frees`: what was
    given back and is free once its results have come, in that order. A request that has left since
    stays named; its tokens will be discarded.
    """

    scheduled: Mapping[str, int]
    samples: tuple[str, ...] = ()
    drafts: Mapping[str, int] = field(factory=dict)
    padded: tuple[str, ...] = ()
    external: Mapping[str, int] = field(factory=dict)
    frees: tuple[GivenBack, ...] = ()


@frozen
class EncoderCache:
    """The encodings of images and audio, each of as many tokens as its content.

    `held`: the contents that requests refer to, in the order of their names, and these requests in
    that of theirs. `evictable`: contents that none refers to any more, the first to go first.
    `taken`: by request, in the order of their names, its spans (the first is 0) whose encodings it
    has taken from the cache or had made, and that it has not passed.
    """

    held: tuple[tuple[Content, tuple[str, ...]], ...] = ()
    evictable: tuple[Content, ...] = ()
    taken: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @property
    def contents(self) -> tuple[Content, ...]:
        """All contents that are cached."""
        return (*(content for content, _ in self.held), *self.evictable)

    def holders(self, content: Content) -> tuple[str, ...]:
        """The requests that refer to a content."""
        return dict(self.held).get(content, ())

    def taken_by(self, request_id: str) -> tuple[int, ...]:
        """The spans of a request that it has taken and not passed."""
        return dict(self.taken).get(request_id, ())


@frozen
class State:
    """A scheduler at rest. A request is in exactly one of the places, from arrival on.

    `waiting` in queue order. `skipped`: passed over in an earlier step because they load, or up to
    0.28.0 because they are `held_back`; or they go on with what is kept for them. Looked at before
    `waiting`. `draining`: they have left, and their blocks are still being written to by a load, or
    sent. `finished` and `aborted`
    have left; `unreported` of those left since the last step. `unanswered`: the connector has not
    said yet what it has of them. `compiling`: their grammars are not ready. `awaited`: turns of
    sessions that their clients have not sent, with what is kept for them; `early`: those that were
    sent before the ones before them have ended. `preempted`: they were
    preempted and have not run since. `lost`: whose external keys and values turned out not to be
    there. `flights`: the steps in flight, the oldest first. `encoder`: the encoder cache.
    `unfilled`: blocks that lookups find, or a request counts as computed, and that are not all
    computed, each with how many of its first tokens are; None in the states of engines and drivers:
    only the reference knows.
    """

    pool: BlockPool
    waiting: abc.Sequence[Sequence] = ()
    skipped: tuple[Sequence, ...] = ()
    running: tuple[Sequence, ...] = ()
    draining: tuple[Sequence, ...] = ()
    finished: Set[str] = frozenset()
    aborted: Set[str] = frozenset()
    unreported: frozenset[str] = frozenset()
    unanswered: frozenset[str] = frozenset()
    compiling: frozenset[str] = frozenset()
    awaited: frozenset[str] = frozenset()
    early: frozenset[str] = frozenset()
    preempted: frozenset[str] = frozenset()
    lost: Set[str] = frozenset()
    flights: tuple[Flight, ...] = ()
    encoder: EncoderCache = EncoderCache()
    unfilled: Unfilled | None = field(default=None, eq=lambda known: known or (), metadata=HISTORY)

    @property
    def queued(self) -> tuple[Sequence, ...]:
        """Every request that has arrived and does not run."""
        return (*self.skipped, *self.waiting)

    @property
    def present(self) -> tuple[Sequence, ...]:
        """Every request that has arrived, or is awaited, and has not left."""
        return (*self.queued, *self.running)

    @property
    def held_back(self) -> frozenset[str]:
        """Requests that cannot run yet: they wait for connector, grammar, client or results."""
        return self.unanswered | self.compiling | self.awaited | self.late

    @property
    def late(self) -> frozenset[str]:
        """Requests that were preempted, and that a step in flight still computes tokens for."""
        if len(self.flights) <= 1:  # the usual case: that one's results come with the preemption
            return frozenset()
        in_flight = {id_ for flight in self.flights for id_ in flight.scheduled}
        return frozenset(row.id for row in self.queued if row.id in in_flight)

    @property
    def admitted(self) -> tuple[Sequence, ...]:
        """Every request that may hold blocks, but for what waits again with what was loaded."""
        return (*self.skipped, *self.running, *self.draining)

    def in_flight(self, request_id: str) -> int:
        """Tokens that steps in flight compute for the request."""
        return sum(flight.scheduled.get(request_id, 0) for flight in self.flights)

    def has_just_sampled(self, request_id: str, steps: int) -> bool:
        """True if one of the last `steps` steps, all in flight, samples for the request."""
        newest = [*reversed(self.flights)][:steps]
        return any(request_id in flight.samples for flight in newest)

    @property
    def is_idle(self) -> bool:
        """True if no request is pending, no transfer is under way and no step is in flight."""
        is_pending = len(self.present) > len(self.awaited)
        return not (is_pending or self.draining or self.flights)


@frozen
class Statistics:
    """Statistics that the scheduler reports after a step.

    `usage`: the part of the pool's blocks that is held.
    """

    waiting: int
    running: int
    usage: float


@frozen
class Lookups:
    """Tokens of the requests that began in a step, and how many of them were found.

    `asked`, `found`: in the prefix cache. `asked_external`, `found_external`: at the connector,
    which is asked for what the cache has not.
    """

    asked: int = 0
    found: int = 0
    asked_external: int = 0
    found_external: int = 0


@frozen(kw_only=True)
class Step(StepRecord):
    """One scheduler step, with what it decided.

    `planned`: the state when the decisions were made and nothing was computed yet. `drafts`: how
    many of the scheduled tokens verify drafts, by request. `admitted`: the requests that came from
    the queues. `external`: tokens of the admitted that the connector brings. `budget_left`: tokens.
    `reported`: the requests that left since the step before. `accepted`: drafts, by request.
    `proposed`: drafts for the next step, by request, of those that sampled and for which the
    drafter has fewer than `num_speculative_tokens`. `lookups`: of the requests that began for the
    first time; `resumed_lookups`: of those that had been preempted. `masked`: requests for whose
    tokens of this step their grammars are asked. `encoded`: by request the spans that the step
    encodes, the first is 0. `evicted`: the contents that are not cached any more, in the order in
    which they went.

    `results_of`: the step in flight whose results came in this one, to which `outputs` and
    `finished` belong; None where none came, and where no step is ever in flight.
    """

    before: State
    planned: State
    after: State
    drafts: Mapping[str, int]
    admitted: tuple[str, ...]
    external: Mapping[str, int]
    preempted: tuple[str, ...]
    budget_left: int
    reported: tuple[str, ...]
    statistics: Statistics
    accepted: Mapping[str, int] = field(factory=dict)
    proposed: Mapping[str, int] = field(factory=dict)
    failed_loads: tuple[str, ...] = ()
    lookups: Lookups = Lookups()
    resumed_lookups: Lookups = Lookups()
    masked: tuple[str, ...] = ()
    encoded: tuple[tuple[str, tuple[int, ...]], ...] = ()
    evicted: tuple[Content, ...] = ()
    results_of: Flight | None = None

    @property
    def kind(self) -> str:
        """Prefill if any request computes more than its newest token, or its first ones."""
        if not self.scheduled:
            return IDLE
        rows = (row for row in self.planned.running if row.id in self.scheduled)
        return DECODE if all(row.decodes for row in rows) else PREFILL

    @property
    def leavers(self) -> Set[str]:
        """Requests whose clients left while the step ran; they get no token of it."""
        return self.after.aborted - self.before.aborted


@frozen
class Context(records.Context[VllmV1Config]):
    """What rules may look up.

    `external`: tokens at the beginning of a request that the connector can bring; `if_lost`: those
    of them that come although the load is lost. `earlier_turns`: by later turn of a session, the
    one before.
    """

    external: Mapping[str, int] = field(factory=dict)
    if_lost: Mapping[str, int] = field(factory=dict)
    earlier_turns: Mapping[str, str] = field(factory=dict)


def context_of(
    config: VllmV1Config,
    requests: Iterable[Request],
    external: Mapping[str, int] | None = None,
    if_lost: Mapping[str, int] | None = None,
) -> Context:
    """What rules may look up under this configuration.

    `external`, `if_lost`: as the context has them, where the requests do not say so themselves.
    """
    by_id = {request.id: request for request in requests}
    said = {row.id: row.external for row in by_id.values() if row.external}
    lost = {row.id: row.external_if_lost for row in by_id.values() if row.external_if_lost}
    turns = {row.continued_by: row.id for row in by_id.values() if row.continued_by is not None}
    keys = BlockKeys(by_id, config.block_size)
    brought, left = {**said, **(external or {})}, {**lost, **(if_lost or {})}
    return Context(config, by_id, keys, brought, left, turns)
