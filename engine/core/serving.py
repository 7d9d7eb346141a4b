"""Base class of engines: a scheduler with a device, driven step by step by a serving stack.

A device may fail. A plan changes no state before it is applied, so a failed step leaves every
request and block as it was, and the next step makes the same plan unless requests arrived or were
aborted. A device that stopped must be replaced: its KV cache is lost, so all admitted requests are
preempted and prefill again.
"""

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from attrs import frozen

from engine.core.faults import DeviceFailedError, Failure
from engine.core.scheduler import Ends, OutcomeT, PlanT, Scheduler
from engine.core.tensors import Tensor
from spec.core.requests import Request

DeviceT = TypeVar("DeviceT")


@frozen
class Statistics:
    """The engine after a step: number of waiting requests and of free blocks."""

    waiting: int
    free_blocks: int


StatisticsT = TypeVar("StatisticsT", bound=Statistics)


@frozen(eq=False)
class StepResult(Generic[PlanT, OutcomeT, StatisticsT]):
    """The plan and the result of a step.

    `outcome`: None if the device failed. `failure`: None if the device did not fail.
    """

    plan: PlanT
    outcome: OutcomeT | None
    failure: Failure | None
    statistics: StatisticsT

    @property
    def outputs(self) -> dict[str, list[int]]:
        """Tokens of this step by request id."""
        return {} if self.outcome is None else self.outcome.outputs

    @property
    def tokens(self) -> dict[str, int]:
        """The last token of this step by request id."""
        return {name: tokens[-1] for name, tokens in self.outputs.items()}

    @property
    def finished(self) -> tuple[str, ...]:
        """Ids of the requests that finished with this step."""
        return () if self.outcome is None else self.outcome.finished


class Engine(ABC, Generic[DeviceT, PlanT, OutcomeT, StatisticsT]):
    """Serves requests on one device; a policy implements the device's input for a plan."""

    def __init__(self, scheduler: Scheduler[Any, PlanT, OutcomeT], device: DeviceT) -> None:
        self.scheduler = scheduler
        self._device = device

    @abstractmethod
    def _computed(self, plan: PlanT) -> Tensor:
        """Execute the plan on the device: the sampled tokens."""

    @abstractmethod
    def _statistics(self) -> StatisticsT:
        """Statistics of the scheduler after a step."""

    @property
    def has_requests(self) -> bool:
        """True if there is a request that has arrived and not left."""
        return self.scheduler.has_requests

    def add(self, request: Request) -> None:
        """Add a request.

        Raises:
            WorkloadError: no schedule can serve the request, or its id is in use or was used
                recently (`engine.core.state.LeftNames`).
        """
        self.scheduler.add(request)

    def abort(self, request_id: str) -> bool:
        """Abort a request; False if it has left already or never arrived."""
        return self.scheduler.abort(request_id)

    def step(self, ends: Ends = None) -> StepResult[PlanT, OutcomeT, StatisticsT]:
        """Plan a step, execute it on the device and apply the plan.

        `ends`: ids of the requests that sample end-of-sequence in this step; by default each
        request ends as its workload says.

        Raises:
            ConstraintError: the device refuses the tensors; the state is unchanged.
        """
        plan = self.scheduler.schedule()
        try:
            tokens = self._computed(plan)
        except DeviceFailedError as failed:
            return StepResult(plan, None, failed.kind, self._statistics())
        outcome = self.scheduler.update(plan, tokens, ends)
        return StepResult(plan, outcome, None, self._statistics())

    def replace_device(self, device: DeviceT) -> None:
        """Continue with a device whose KV cache is empty; sampled tokens are kept.

        All admitted requests are preempted to the front of the waiting queue, in the order of their
        admission as far as the scheduler knows it.
        """
        self._device = device
        self.scheduler.restart()
