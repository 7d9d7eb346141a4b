"""The scheduler with a device: what a serving stack calls step by step.

A device may fail. Since a plan changes nothing before it is carried out, a failed step leaves every
request and block where it was, and the next step plans the same again unless clients came or
went. A device that stopped is replaced: its cache is lost, so admitted requests compute
everything anew, as after a preemption.
"""

from collections.abc import Collection

from attrs import frozen

from engine.core.faults import DeviceFailedError, Failure
from engine.core.tensors import NO_TOKENS, Tensor
from engine.spyre.device import Device
from engine.spyre.model_input import decode_input, prefill_input
from engine.spyre.scheduler import DecodePlan, IdlePlan, Outcome, Plan, PrefillPlan, Scheduler
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig


@frozen
class Statistics:
    """The engine after a step: requests by phase, blocks by use."""

    waiting: int
    prefilling: int
    decoding: int
    paused: int
    free_blocks: int
    reserved_blocks: int


@frozen(eq=False)
class StepResult:
    """What a step yields.

    `outcome`: None if the device failed, then `failure` says how. `plan` is what was, or was to
    be, done.
    """

    plan: Plan
    outcome: Outcome | None
    failure: Failure | None
    statistics: Statistics

    @property
    def tokens(self) -> dict[str, int]:
        """The token that each request got in this step."""
        if self.outcome is None:
            return {}
        return dict(zip(self.outcome.sampled, self.outcome.tokens.tolist(), strict=True))

    @property
    def finished(self) -> tuple[str, ...]:
        """The requests that got their last token with this step."""
        return () if self.outcome is None else self.outcome.finished


class Engine:
    """Serves requests on one device."""

    def __init__(self, config: SpyreConfig, device: Device) -> None:
        self.scheduler = Scheduler(config)
        self._device = device

    @property
    def has_requests(self) -> bool:
        """True if a request is pending."""
        return self.scheduler.has_requests

    def add(self, request: Request) -> None:
        """A client hands in a request.

        Raises:
            WorkloadError: it could never be served, or its name was used before, see
                `engine.spyre.scheduler.state.LeftNames`.
        """
        self.scheduler.add(request)

    def abort(self, request_id: str) -> bool:
        """A client goes away; False if its request has left already or never came."""
        return self.scheduler.abort(request_id)

    def step(self, ends: Collection[str] | None = None) -> StepResult:
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

    def replace_device(self, device: Device) -> None:
        """Go on with a device whose cache is empty; no request loses a token that it sampled.

        Admitted requests wait in front again: paused requests, then the batch, then the prefill,
        each in the order of their admission as far as it is known.
        """
        self._device = device
        self.scheduler.restart()

    def _computed(self, plan: Plan) -> Tensor:
        """What the device samples in this step."""
        match plan:
            case PrefillPlan():
                return self._device.prefill(prefill_input(self.scheduler, plan))
            case DecodePlan():
                return self._device.decode(decode_input(self.scheduler, plan))
            case IdlePlan():
                return NO_TOKENS

    def _statistics(self) -> Statistics:
        state = self.scheduler.state
        return Statistics(
            waiting=len(state.queue),
            prefilling=int(state.prefilling is not None),
            decoding=len(state.decoding),
            paused=len(state.paused),
            free_blocks=state.blocks.free.count,
            reserved_blocks=state.reserved,
        )
