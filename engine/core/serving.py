"""The scheduler with a device: what a serving stack calls step by step.

A device may fail. Since a plan changes nothing before it is carried out, a failed step leaves every
request and block where it was, and the next step plans the same again unless clients came or
went. A device that stopped is replaced: its cache is lost, so admitted requests compute
everything anew, as after a preemption.
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
    """The engine after a step: requests that wait, blocks that none holds."""

    waiting: int
    free_blocks: int


StatisticsT = TypeVar("StatisticsT", bound=Statistics)


@frozen(eq=False)
class StepResult(Generic[PlanT, OutcomeT, StatisticsT]):
    """What a step yields.

    `outcome`: None if the device failed, then `failure` says how. `plan` is what was, or was to
    be, done.
    """

    plan: PlanT
    outcome: OutcomeT | None
    failure: Failure | None
    statistics: StatisticsT

    @property
    def outputs(self) -> dict[str, list[int]]:
        """The tokens that each request got in this step."""
        return {} if self.outcome is None else self.outcome.outputs

    @property
    def tokens(self) -> dict[str, int]:
        """The token that each request got in this step; of several the last."""
        return {name: tokens[-1] for name, tokens in self.outputs.items()}

    @property
    def finished(self) -> tuple[str, ...]:
        """The requests that got their last token with this step."""
        return () if self.outcome is None else self.outcome.finished


class Engine(ABC, Generic[DeviceT, PlanT, OutcomeT, StatisticsT]):
    """Serves requests on one device; a policy says what the device is given for a plan."""

    def __init__(self, scheduler: Scheduler[Any, PlanT, OutcomeT], device: DeviceT) -> None:
        self.scheduler = scheduler
        self._device = device

    @abstractmethod
    def _computed(self, plan: PlanT) -> Tensor:
        """What the device samples in this step."""

    @abstractmethod
    def _statistics(self) -> StatisticsT:
        """What the scheduler says of itself after a step."""

    @property
    def has_requests(self) -> bool:
        """True if a request is pending."""
        return self.scheduler.has_requests

    def add(self, request: Request) -> None:
        """A client hands in a request.

        Raises:
            WorkloadError: it could never be served, or its name was used before, see
                `engine.core.state.LeftNames`.
        """
        self.scheduler.add(request)

    def abort(self, request_id: str) -> bool:
        """A client goes away; False if its request has left already or never came."""
        return self.scheduler.abort(request_id)

    def step(self, ends: Ends = None) -> StepResult[PlanT, OutcomeT, StatisticsT]:
        """Plan a step, have the device do it, carry it out.

        `ends`: the requests that sample the end of sequence in this step; by default each ends
        where it says that it does.

        Raises:
            ConstraintError: the device refuses the tensors; nothing has changed.
        """
        plan = self.scheduler.schedule()
        try:
            tokens = self._computed(plan)
        except DeviceFailedError as failed:
            return StepResult(plan, None, failed.kind, self._statistics())
        outcome = self.scheduler.update(plan, tokens, ends)
        return StepResult(plan, outcome, None, self._statistics())

    def replace_device(self, device: DeviceT) -> None:
        """Go on with a device whose cache is empty; no request loses a token that it sampled.

        Admitted requests wait in front again, in the order of their admission as far as it is
        known.
        """
        self._device = device
        self.scheduler.restart()
