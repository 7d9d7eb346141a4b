"""The scheduler that a serving stack runs: hand in requests, plan a step, carry it out."""

from collections.abc import Collection

from engine.core.tensors import NO_TOKENS, Tensor
from engine.spyre.blocks import BlockManager
from engine.spyre.scheduler import leaving
from engine.spyre.scheduler.carrying_out import carry_out
from engine.spyre.scheduler.core import Core
from engine.spyre.scheduler.decode import plan_decode
from engine.spyre.scheduler.plan import IdlePlan, Outcome, Plan
from engine.spyre.scheduler.prefill import plan_prefill
from engine.spyre.scheduler.queue import WaitingQueue
from engine.spyre.scheduler.tracked import Tracked
from spec.core.errors import WorkloadError
from spec.core.requests import Request
from spec.spyre.config import Queue, SpyreConfig, refuse_unservable


class StalePlanError(Exception):
    """A plan was to be carried out that is not the one that was made last."""


class Scheduler:
    """Continuous batching under Spyre's constraints, as `spec/chapters/spyre.md` has it.

    A step is `schedule`, then the device, then `update`. Until `update` nothing has changed: if
    the device fails, `schedule` again. Requests may be added in between, an abort makes the plan
    stale.
    """

    def __init__(self, config: SpyreConfig) -> None:
        queue = WaitingQueue(by_shape=config.queue is Queue.OVERTAKING)
        self.core = Core(config, BlockManager(config.pool_blocks), queue)
        self._planned: Plan | None = None

    @property
    def has_requests(self) -> bool:
        """True if somebody waits or was admitted and has not left."""
        return bool(len(self.core.queue) or self.core.admitted)

    def copy(self) -> "Scheduler":
        """A scheduler of its own in the same state; a plan that was made is not part of it."""
        twin = Scheduler(self.core.config)
        twin.core = self.core.copy()
        return twin

    def add(self, request: Request) -> None:
        """A client hands in a request: it goes to the end of the queue.

        Raises:
            WorkloadError: it could never be served, or its name was used before.
        """
        refuse_unservable(request, self.core.config)
        if self._is_known(request.id):
            raise WorkloadError("id", request.id, "a name that no other request has had")
        self.core.queue.put_back(Tracked.of(request))

    def _is_known(self, request_id: str) -> bool:
        core = self.core
        return (
            core.queue.find(request_id) is not None
            or request_id in core.finished
            or request_id in core.aborted
            or any(one.id == request_id for one in core.admitted)
        )

    def abort(self, request_id: str) -> bool:
        """A client goes away; False if its request has left already or never came."""
        self._planned = None
        return leaving.abort(self.core, request_id)

    def restart(self) -> None:
        """All that the device had cached is lost: whoever was admitted waits in front again."""
        self._planned = None
        leaving.restart(self.core)

    def schedule(self) -> Plan:
        """What the next step does. Source: spyre, "Priority rules".

        A prefill of one chunk if somebody may have it, else a decode of the batch, else nothing.
        """
        core = self.core
        prefill, refusal = plan_prefill(core)
        if prefill is not None:
            self._planned = prefill
        elif len(core.decoding) or len(core.paused):
            self._planned = plan_decode(core, refusal)
        else:
            self._planned = IdlePlan(refusal)
        return self._planned

    def update(
        self, plan: Plan, tokens: Tensor = NO_TOKENS, ends: Collection[str] | None = None
    ) -> Outcome:
        """The device has done the step: carry out the plan with the tokens that it sampled.

        `tokens` [sampled]: one for a chunk that ends its prompt, none for another, one a row for
        a decode. `ends`: who of those that sampled has sampled the end of sequence; by default
        each request ends where it says that it does.

        Raises:
            StalePlanError: another plan has been made since, or this one was carried out.
            ValueError: not as many tokens as were to be sampled.
        """
        if plan is not self._planned:
            raise StalePlanError("a plan is carried out once, and before anybody is aborted")
        if len(tokens) != plan.samples:
            raise ValueError(f"{len(tokens)} tokens; {plan.samples} are to be sampled")
        self._planned = None
        return carry_out(self.core, plan, tokens, ends)
