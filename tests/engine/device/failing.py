"""A device that fails on demand, so that its users can be tested."""

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from engine.core.faults import DeviceFailedError, Failure
from engine.core.tensors import Tensor
from engine.nano_vllm import serving
from engine.paged.inputs import PagedInput
from engine.spyre.device import DecodeInput, Device, PrefillInput

Given = TypeVar("Given", PrefillInput, DecodeInput, PagedInput)
DeviceT = TypeVar("DeviceT")


class Failing(Generic[DeviceT]):
    """Another device, which fails at the steps that a plan names.

    Steps are counted from 0 as they are tried: a step that is run again is the next one. Once it
    has stopped it stays so, whatever the plan says.
    """

    def __init__(self, device: DeviceT, plan: Mapping[int, Failure]) -> None:
        """`plan`: how the device fails, by step; every other step is that of `device`."""
        self._device = device
        self._plan = plan
        self._tried = 0
        self._has_stopped = False

    def _step(self, step: Callable[[Given], Tensor], given: Given) -> Tensor:
        failure = Failure.STOPPED if self._has_stopped else self._plan.get(self._tried)
        self._tried += 1
        self._has_stopped = failure is Failure.STOPPED
        if failure is None:
            return step(given)
        if failure is Failure.RESULT_LOST:
            step(given)
        raise DeviceFailedError(failure)


class FailingDevice(Failing[Device]):
    """Spyre's; satisfies `Device`."""

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


class FailingPagedDevice(Failing[serving.Device]):
    """A paged one."""

    def compute(self, given: PagedInput) -> Tensor:
        """As the other device, unless it fails.

        Raises:
            DeviceFailedError: as planned.
        """
        return self._step(self._device.compute, given)
