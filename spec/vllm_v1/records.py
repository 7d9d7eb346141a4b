"""What can be seen of a vLLM V1 scheduler: between two steps, and of one step.

The counterpart of `spec.spyre.state` and `spec.spyre.records`. There are no phases: a request has
tokens, and some of them are computed. All classes are immutable, hashable and comparable.
"""

from collections.abc import Mapping
from enum import StrEnum

from attrs import field, frozen

from spec.core.blocks import BlockPool
from spec.core.records import DECODE, IDLE, PREFILL, Event
from spec.core.requests import BlockKeys, Request
from spec.vllm_v1.config import VllmV1Config


class Load(StrEnum):
    """Where an asynchronous load of external keys and values stands."""

    NONE = "none"
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"


@frozen(cache_hash=True)
class Sequence:
    """A request inside the scheduler; lengths in tokens.

    `computed`: tokens whose keys and values are in the cache. `generated`: tokens sampled so far.
    `drafts`: proposed and not yet verified. `arrival`: how many arrived before it, kept only
    where the scheduling looks at it. `prefilling`: its last step left some of its tokens
    uncomputed. `load`: of its external keys and values.
    """

    id: str
    prompt_len: int
    arrival: int = 0
    computed: int = 0
    generated: int = 0
    drafts: int = 0
    blocks: tuple[int, ...] = ()
    prefilling: bool = False
    load: Load = Load.NONE

    @property
    def tokens(self) -> int:
        """Prompt and generated tokens: what `computed` has to catch up with."""
        return self.prompt_len + self.generated

    @property
    def decodes(self) -> bool:
        """True if only its newest token is not computed: what it computes next are no chunks."""
        return self.generated > 0 and self.computed == self.tokens - 1


@frozen(cache_hash=True)
class State:
    """A scheduler at rest. A request is in exactly one of the places, from arrival on.

    `waiting` in queue order. `skipped`: passed over in an earlier step because they load, looked
    at again before `waiting`. `draining`: aborted while loading, their blocks are still being
    written to. `finished` and `aborted` have left; `unreported` of those left since the last step.
    `lost`: whose external keys and values turned out not to be there.
    """

    pool: BlockPool
    waiting: tuple[Sequence, ...] = ()
    skipped: tuple[Sequence, ...] = ()
    running: tuple[Sequence, ...] = ()
    draining: tuple[Sequence, ...] = ()
    finished: frozenset[str] = frozenset()
    aborted: frozenset[str] = frozenset()
    unreported: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()

    @property
    def queued(self) -> tuple[Sequence, ...]:
        """Every request that has arrived and does not run."""
        return (*self.skipped, *self.waiting)

    @property
    def present(self) -> tuple[Sequence, ...]:
        """Every request that has arrived and has not left."""
        return (*self.queued, *self.running)

    @property
    def is_idle(self) -> bool:
        """True if no request is pending and no load is under way."""
        return not self.present and not self.draining


@frozen
class Statistics:
    """What the scheduler tells of itself after a step.

    `usage`: the part of the pool's blocks that is held.
    """

    waiting: int
    running: int
    usage: float


@frozen
class Step:
    """One scheduler step: what it started from, what it decided, what came of it.

    `planned`: the state when the decisions were made and nothing was computed yet. `scheduled`:
    tokens computed, by request. `drafts`: how many of them verify drafts. `admitted`: who
    came from the queues. `external`: tokens of the admitted that the connector brings.
    `budget_left`: tokens. `refusal`: the rule that kept the first of the queue from running.
    `accepted`: drafts, by request. `ended`: who sampled the end of sequence where the
    environment decided so. `aborted`: whose client left since the step before. `reported`: who
    left since the step before.
    """

    index: int
    time: float
    before: State
    planned: State
    after: State
    scheduled: Mapping[str, int]
    drafts: Mapping[str, int]
    admitted: tuple[str, ...]
    external: Mapping[str, int]
    preempted: tuple[str, ...]
    budget_left: int
    refusal: str | None
    reported: tuple[str, ...]
    statistics: Statistics
    outputs: Mapping[str, tuple[int, ...]] = field(factory=dict)
    accepted: Mapping[str, int] = field(factory=dict)
    failed_loads: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    aborted: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()

    @property
    def kind(self) -> str:
        """Prefill if any request computes more than its newest token, or its first ones."""
        if not self.scheduled:
            return IDLE
        rows = (one for one in self.planned.running if one.id in self.scheduled)
        return DECODE if all(one.decodes for one in rows) else PREFILL

    @property
    def leavers(self) -> frozenset[str]:
        """Whose clients left while the step ran: they got nothing of it."""
        return self.after.aborted - self.before.aborted

    def happened(self, *transitions: str) -> list[Event]:
        """The events of these kinds, in order."""
        return [event for event in self.events if event.transition in transitions]


@frozen
class Context:
    """What rules may look up: the configuration, requests by id, keys of their blocks.

    `external`: tokens at the beginning of a request that the connector can bring.
    """

    config: VllmV1Config
    requests: Mapping[str, Request]
    keys: BlockKeys
    external: Mapping[str, int] = field(factory=dict)
