"""nano-vLLM's scheduler with a device."""

from typing import Protocol, TypeAlias

from attrs import frozen

from engine.core import serving
from engine.core.scheduler import Outcome
from engine.core.tensors import NO_TOKENS, Tensor
from engine.nano_vllm.model_input import decode_input, prefill_input
from engine.nano_vllm.plan import Plan, PrefillPlan
from engine.nano_vllm.scheduler import Scheduler
from engine.paged.inputs import PagedInput
from spec.nano_vllm.config import NanoVllmConfig


class Device(Protocol):
    """A device that computes ragged batches."""

    def compute(self, inputs: PagedInput) -> Tensor:
        """Compute the new tokens of every row; returns the sampled tokens [samples].

        Raises:
            ConstraintError: the step breaks a constraint.
            DeviceFailedError: the device failed.
        """


@frozen
class Statistics(serving.Statistics):
    """The engine after a step: number of requests by queue and of free blocks."""

    running: int


StepResult: TypeAlias = serving.StepResult[Plan, Outcome, Statistics]


class Engine(serving.Engine[Device, Plan, Outcome, Statistics]):
    """Serves requests on one device."""

    scheduler: Scheduler

    def __init__(self, config: NanoVllmConfig, device: Device) -> None:
        """An engine without requests."""
        super().__init__(Scheduler(config), device)

    def _computed(self, plan: Plan) -> Tensor:
        state = self.scheduler.state
        if isinstance(plan, PrefillPlan):
            return self._device.compute(prefill_input(state, plan))
        return self._device.compute(decode_input(state, plan)) if plan.samples else NO_TOKENS

    def _statistics(self) -> Statistics:
        state = self.scheduler.state
        return Statistics(
            waiting=len(state.queue),
            free_blocks=state.blocks.free.count,
            running=len(state.running.rows),
        )
