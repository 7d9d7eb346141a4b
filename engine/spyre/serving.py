"""Spyre's scheduler with a device."""

from typing import TypeAlias

from attrs import frozen

from engine.core import serving
from engine.core.tensors import NO_TOKENS, Tensor
from engine.spyre.device import Device
from engine.spyre.model_input import decode_input, prefill_input
from engine.spyre.scheduler import DecodePlan, IdlePlan, Outcome, Plan, PrefillPlan, Scheduler
from spec.spyre.config import SpyreConfig


@frozen
class Statistics(serving.Statistics):
    """The engine after a step: number of requests by phase and of blocks by use."""

    prefilling: int
    decoding: int
    paused: int
    reserved_blocks: int


StepResult: TypeAlias = serving.StepResult[Plan, Outcome, Statistics]


class Engine(serving.Engine[Device, Plan, Outcome, Statistics]):
    """Serves requests on one device."""

    scheduler: Scheduler

    def __init__(self, config: SpyreConfig, device: Device) -> None:
        """An engine without requests."""
        super().__init__(Scheduler(config), device)

    def compiled(self, request_id: str) -> bool:
        """A request's grammar is ready; False if it was."""
        return self.scheduler.compiled(request_id)

    def encoded(self, request_id: str) -> bool:
        """The encoder is done with the images of a request; False if it was, or has none."""
        return self.scheduler.encoded(request_id)

    def unencodable(self, request_id: str) -> bool:
        """The images of a request cannot be encoded: it leaves; False if it waits for none."""
        return self.scheduler.unencodable(request_id)

    def _computed(self, plan: Plan) -> Tensor:
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
            free_blocks=state.blocks.free.count,
            prefilling=int(state.prefilling is not None),
            decoding=len(state.decoding),
            paused=len(state.paused),
            reserved_blocks=state.reserved,
        )
