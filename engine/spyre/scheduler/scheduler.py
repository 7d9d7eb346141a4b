"""The scheduler that a serving stack runs: hand in requests, plan a step, apply the plan."""

from collections.abc import Collection

from engine.core.tensors import NO_TOKENS, Tensor
from engine.spyre.blocks import BlockManager
from engine.spyre.scheduler import apply
from engine.spyre.scheduler.admission import LastChunk
from engine.spyre.scheduler.decode import plan_decode
from engine.spyre.scheduler.plan import IdlePlan, Outcome, Plan
from engine.spyre.scheduler.prefill import plan_prefill
from engine.spyre.scheduler.requests import RequestState, WaitingQueue
from engine.spyre.scheduler.state import NAMES_KEPT, SchedulerState
from spec.core.errors import ConfigError, WorkloadError
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig, refuse_unservable
from spec.spyre.variants import Queue, Reading


class StalePlanError(Exception):
    """A plan was to be applied that is not the one that was made last."""


class Scheduler:
    """Continuous batching under Spyre's constraints, as `spec/chapters/spyre.md` has it.

    A step is `schedule`, then the device, then `update`. Until `update` nothing has changed: if
    the device fails, `schedule` again. Requests may be added in between, an abort makes the plan
    stale.
    """

    def __init__(self, config: SpyreConfig) -> None:
        """A scheduler without requests.

        Raises:
            ConfigError: a reading other than the text's: the engine has none of 2.6.3's defects.
        """
        if config.reading is not Reading.TEXT:
            raise ConfigError("reading", config.reading, f"{Reading.TEXT}, of the engine")
        queue = WaitingQueue(by_shape=config.queue is Queue.OVERTAKING)
        blocks = BlockManager(config.pool_blocks)
        self.state = SchedulerState(config, blocks, queue, LastChunk(config))
        self._planned: Plan | None = None

    @property
    def has_requests(self) -> bool:
        """True if a request waits or was admitted and has not left."""
        return bool(len(self.state.queue) or self.state.admitted)

    def add(self, request: Request) -> None:
        """A client hands in a request: it goes to the end of the queue.

        Raises:
            WorkloadError: it could never be served, or its name is that of a request that is here
                or was among the last to leave (`LeftNames`).
        """
        refuse_unservable(request, self.state.config)
        if self._is_known(request.id):
            raise WorkloadError(
                "id",
                request.id,
                f"a name that none here has, nor any of the last {NAMES_KEPT:,} to leave",
            )
        self.state.queue.put_back(RequestState.of(request))

    def _is_known(self, request_id: str) -> bool:
        state = self.state
        return (
            state.queue.find(request_id) is not None
            or request_id in state.finished
            or request_id in state.aborted
            or any(one.id == request_id for one in state.admitted)
        )

    def abort(self, request_id: str) -> bool:
        """A client goes away; False if its request has left already or never came."""
        self._planned = None
        return apply.abort(self.state, request_id)

    def restart(self) -> None:
        """All that the device had cached is lost: admitted requests wait in front again."""
        self._planned = None
        apply.restart(self.state)

    def schedule(self) -> Plan:
        """What the next step does. Source: spyre, "Priority rules".

        A prefill of one chunk if a request may have it, else a decode of the batch, else nothing.
        """
        state = self.state
        prefill, refusal = plan_prefill(state)
        if prefill is not None:
            self._planned = prefill
        elif len(state.decoding) or len(state.paused):
            self._planned = plan_decode(state, refusal)
        else:
            self._planned = IdlePlan(refusal)
        return self._planned

    def update(
        self, plan: Plan, tokens: Tensor = NO_TOKENS, ends: Collection[str] | None = None
    ) -> Outcome:
        """The device has done the step: apply the plan with the tokens that it sampled.

        `tokens` [sampled]: one for a chunk that ends its prompt, none for another, one a row for
        a decode. `ends`: the requests that sample the end of sequence; by default each ends
        where it says that it does.

        Raises:
            StalePlanError: another plan has been made since, or this one was applied.
            ValueError: not as many tokens as were to be sampled.
        """
        if plan is not self._planned:
            raise StalePlanError("a plan is applied once, and before any request is aborted")
        if len(tokens) != plan.samples:
            raise ValueError(f"{len(tokens)} tokens; {plan.samples} are to be sampled")
        self._planned = None
        return apply.apply_plan(self.state, plan, tokens, ends)
