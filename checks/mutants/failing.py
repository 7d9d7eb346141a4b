"""Device failures: an engine on a device that fails as planned must lose no request."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from attrs import define

from checks.harness.own_engine import EngineScheduler
from engine.core.faults import DeviceFailedError, Failure
from engine.core.tensors import Tensor
from engine.paged.device import PagedDevice


class FailingDevice:
    """A device that wraps another one and fails at planned steps.

    Attempts are counted from 0: a repeated step counts again. A stopped device stays stopped until
    `renew`.
    """

    def __init__(self, device: Any, plan: Mapping[int, Failure]) -> None:
        """`device`: with an empty cache. `plan`: the failure of each attempt that fails."""
        self._device, self._empty = device, deepcopy(device)
        self._plan = plan
        self._tried = 0
        self._has_stopped = False

    def prefill(self, tensors: Any) -> Tensor:
        """Prefill on the wrapped device; raises DeviceFailedError as planned."""
        return self._step(self._device.prefill, tensors)

    def decode(self, tensors: Any) -> Tensor:
        """Decode on the wrapped device; raises DeviceFailedError as planned."""
        return self._step(self._device.decode, tensors)

    def compute(self, tensors: Any) -> Tensor:
        """Compute a batch on the wrapped device; raises DeviceFailedError as planned."""
        return self._step(self._device.compute, tensors)

    def load(self, blocks: Tensor, other: PagedDevice, theirs: Tensor) -> None:
        """Load blocks into the wrapped device; this never fails."""
        self._device.load(blocks, other, theirs)

    def renew(self) -> None:
        """Replace the device by one with an empty cache."""
        self._device, self._has_stopped = deepcopy(self._empty), False

    def _step(self, step: Callable[[Any], Tensor], tensors: Any) -> Tensor:
        failure = Failure.STOPPED if self._has_stopped else self._plan.get(self._tried)
        self._tried += 1
        self._has_stopped = failure is Failure.STOPPED
        if failure is None:
            return step(tensors)
        if failure is Failure.RESULT_LOST:
            step(tensors)
        raise DeviceFailedError(failure)


class LostError(Exception):
    """A device failure changed state that it must not change."""


@define
class Recovery:
    """Recovery from a device failure: the step is repeated, on a new device if the old one stopped.

    `restarts`: the number of new devices. Source: engine/core/serving.py, a device may fail.
    """

    scheduler: EngineScheduler[Any, Any]
    device: FailingDevice
    restarts: int = 0

    def __attrs_post_init__(self) -> None:
        self.scheduler.recover = self.recover

    def recover(self, failure: Failure, before: Any) -> None:
        """Recover from the failure of the step that began in the state `before`.

        Raises:
            LostError: the failed step changed the state, or the restart lost a request, changed
                the waiting order, or kept blocks.
        """
        _refuse(self._state() != before, "the failed step has changed the state")
        if failure is not Failure.STOPPED:
            return
        self.device.renew()
        self.scheduler.engine.replace_device(self.device)
        self.restarts += 1
        _refuse_lost(before, self._state())

    def _state(self) -> Any:
        return self.scheduler.observer.begin()


def _refuse_lost(before: Any, after: Any) -> None:
    """Refuse a restart unless all requests wait in order, no block is held and none is cached."""
    waiting = [row.id for row in before.waiting]
    present, wait = {row.id for row in before.present}, [row.id for row in after.waiting]
    _refuse({*wait} != present, f"waiting after the restart: {wait}, present: {sorted(present)}")
    _refuse(len({*wait}) < len(wait), f"a request waits twice after the restart: {wait}")
    stayed = [request_id for request_id in wait if request_id in waiting]
    _refuse(stayed != waiting, f"the order of those that waited: {stayed}, before {waiting}")
    pool = after.pool
    _refuse(bool(pool.references), f"blocks are held after the restart: {pool.references}")
    _refuse(bool(pool.cached or pool.keys), f"blocks can be hit after the restart: {pool.cached}")
    _refuse(len({*pool.free}) != pool.size, f"free after the restart: {pool.free} of {pool.size}")


def _refuse(wrong: bool, what: str) -> None:
    if wrong:
        raise LostError(what)
