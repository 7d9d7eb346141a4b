"""The state of vLLM V1's scheduler between two steps."""

from collections.abc import Callable, Sequence

from attrs import define, field

from engine.core import state
from engine.core.requests import WaitingQueue
from engine.core.state import LeftNames
from engine.vllm_v1.blocks import BlockManager
from engine.vllm_v1.encoder import EncoderCache
from engine.vllm_v1.flights import Flight
from engine.vllm_v1.requests import RankedQueue, RequestState
from engine.vllm_v1.running import Running
from spec.core.requests import Request
from spec.vllm_v1.config import Scheduling, VllmV1Config
from spec.vllm_v1.groups import KvGroup


@define(eq=False)
class Noted:
    """Ids of requests, for reports and statistics.

    - `unreported`: they left since the last step.
    - `preempted`: they were preempted and have not run since.
    - `compiling`: their grammars are not ready.
    - `awaited`: turns of sessions that their clients have not sent.
    - `expected`: turns that follow one that is under way; `early`: those that were sent already.

    `arrivals`: how many have arrived so far.
    """

    arrivals: int = 0
    unreported: set[str] = field(factory=set)
    preempted: set[str] = field(factory=set)
    compiling: set[str] = field(factory=set)
    awaited: set[str] = field(factory=set)
    expected: set[str] = field(factory=set)
    early: dict[str, Request] = field(factory=dict)

    def has_left(self, request: Request) -> None:
        """The next step reports the request; no turn of its session follows."""
        self.unreported.add(request.id)
        for names in (self.preempted, self.compiling, self.awaited):
            names.discard(request.id)
        following: Request | None = request
        while following is not None and (turn := following.continued_by) is not None:
            self.expected.discard(turn)
            following = self.early.pop(turn, None)


@define(eq=False)
class SchedulerState(state.SchedulerState[RequestState]):
    """Everything that planning reads and applying a plan changes.

    - `queue`: requests that wait. `skipped`: those that stand before them because they load, or
      were looked at when their load had ended. `running`: the running queue.
    - `draining`: have left; their blocks are still being written to by a load, or sent.
    - `noted`: what reports and statistics need to know of requests.
    - `flights`: the steps in flight, the oldest first.
    - `lost`: requests whose load failed; their external tokens are not offered again.
    - `encoder`: the encodings of images and audio.
    - `planned`: called when a step's decisions have been applied and nothing is computed yet.
    """

    config: VllmV1Config
    blocks: BlockManager
    queue: WaitingQueue[RequestState]
    running: Running
    skipped: list[RequestState] = field(factory=list)
    draining: list[RequestState] = field(factory=list)
    noted: Noted = field(factory=Noted)
    flights: list[Flight] = field(factory=list)
    lost: LeftNames = field(factory=LeftNames)
    planned: Callable[[], None] | None = None
    encoder: EncoderCache = field(init=False)
    budget: int = field(init=False)  # of the configuration; every step reads it

    def __attrs_post_init__(self) -> None:
        self.budget = self.config.token_budget
        self.encoder = EncoderCache.of(self.config)

    @staticmethod
    def of(config: VllmV1Config) -> "SchedulerState":
        """A scheduler without requests."""
        blocks = BlockManager(config.pool_blocks, config.behaviour.empty_blocks_first)
        by_priority = config.scheduling is Scheduling.PRIORITY
        queue = RankedQueue() if by_priority else WaitingQueue[RequestState]()
        return SchedulerState(config, blocks, queue, Running(config.block_size))

    @property
    def groups(self) -> tuple[KvGroup, ...]:
        """The groups of layers beside the first."""
        return self.config.groups

    @property
    def alignment(self) -> int:
        """Tokens of which lookups find a multiple."""
        config = self.config
        return config.block_size if config.kv_groups is None else config.hit_alignment

    @property
    def by_priority(self) -> bool:
        """True if the order of service is that of priorities."""
        return self.config.scheduling is Scheduling.PRIORITY

    @property
    def admitted(self) -> Sequence[RequestState]:
        """The running, skipped and draining requests, which may hold blocks."""
        return (*self.running.members, *self.skipped, *self.draining)

    @property
    def caches_sampled(self) -> bool:
        """True if lookups find what a row has filled when its tokens are sampled, not later."""
        config = self.config
        verifies = config.num_speculative_tokens > 0 and config.behaviour.caches_accepted
        return config.prefix_caching and (verifies or config.steps_in_flight > 0)

    @property
    def threshold(self) -> int:
        """Most tokens of one request in the next step; 0: no limit."""
        present = len(self.running.members) + len(self.skipped) + len(self.queue)
        return self.config.threshold_among(present)

    @property
    def unanswered(self) -> frozenset[str]:
        """Requests of which the connector has not said what it has."""
        if not self.config.late_lookups:
            return frozenset()
        return frozenset(row.id for row in (*self.skipped, *self.queue) if row.unanswered)

    def holds_back(self, row: RequestState) -> bool:
        """True if connector, client, the request's grammar or what is in flight is waited for."""
        is_late = len(self.flights) > 1 and any(row.id in flight.tokens for flight in self.flights)
        noted = self.noted
        return row.unanswered or row.id in noted.compiling or row.id in noted.awaited or is_late

    def is_written(self, request_id: str) -> bool:
        """True if the request's blocks may not be used yet: a step in flight writes to them."""
        return self.config.frees_late and any(
            request_id in flight.tokens for flight in self.flights
        )

    def in_flight(self, request_id: str) -> int:
        """Tokens that steps in flight compute for the request."""
        return sum(flight.tokens.get(request_id, 0) for flight in self.flights)

    def just_sampled(self) -> set[str]:
        """Requests for which a step samples that one of a pipeline's other stages comes behind."""
        stages = self.config.steps_in_flight
        if stages <= 1:
            return set()
        return {name for flight in self.flights[1 - stages :] for name in flight.awaited}

    @property
    def has_queued(self) -> bool:
        """True if a request has arrived and does not run."""
        return bool(self.skipped) or len(self.queue) > 0

    def find(self, request_id: str) -> RequestState | None:
        """The request with this id, if it has arrived and not left."""
        if (waiting := self.queue.find(request_id)) is not None:
            return waiting
        for others in (self.running.rows, self.skipped):
            for request in others:
                if request.request.id == request_id:
                    return request
        return None

    def skip(self, request: RequestState) -> None:
        """Append a request that begins to load to the skipped queue; by priority, at its rank."""
        self.skipped.append(request)
        if self.by_priority:
            self.skipped.sort(key=lambda waiting: waiting.rank)
