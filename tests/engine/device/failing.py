"""A device that fails on demand, so that its users can be tested."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from engine.core.faults import DeviceFailedError, Failure
from engine.core.tensors import Tensor
from engine.spyre.device import DecodeInput, Device, PrefillInput

Given = TypeVar("Given", PrefillInput, DecodeInput)


class FailingDevice:
    """Another device, which fails at the steps that a plan names; satisfies `Device`.

    Steps are counted from 0 as they are tried: a step that is run again is the next one. Once it
    has stopped it stays so, whatever the plan says.
    """

    def __init__(self, device: Device, plan: Mapping[int, Failure]) -> None:
        """`plan`: how the device fails, by step; every other step is that of `device`."""
        self._device = device
        self._plan = plan
        self._tried = 0
        self._has_stopped = False

    def prefill(self, given: PrefillInput) -> Tensor:
        """As the other device, unless it fails.

        Raises:
            DeviceFailedError: as planned.
        """
        return self._step(self._device.prefill, given)

    def decode(self, given: DecodeInput) -> Tensor:
        """As the other device, unless it fails.

        Raises:
            DeviceFailedError: as planned.
        """
        return self._step(self._device.decode, given)

    def _step(self, step: Callable[[Given], Tensor], given: Given) -> Tensor:
        failure = Failure.STOPPED if self._has_stopped else self._plan.get(self._tried)
        self._tried += 1
        self._has_stopped = failure is Failure.STOPPED
        if failure is None:
            return step(given)
        if failure is Failure.RESULT_LOST:
            step(given)
        raise DeviceFailedError(failure)
