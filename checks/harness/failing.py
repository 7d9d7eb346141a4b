"""An engine on a device that fails now and then: no request may be lost with it."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from attrs import define

from checks.harness.own_engine import EngineScheduler
from engine.core.faults import DeviceFailedError, Failure
from engine.core.tensors import Tensor
from engine.paged.device import PagedDevice


class FailingDevice:
    """Another device, which fails at the steps that a plan names; it can do what that can.

    Steps are counted from 0 as they are tried: a step that is run again is the next one. Once it
    has stopped it stays so, whatever the plan says, until it is renewed.
    """

    def __init__(self, device: Any, plan: Mapping[int, Failure]) -> None:
        """`device`: with an empty cache. `plan`: how it fails, by step; else it does not."""
        self._device, self._empty = device, deepcopy(device)
        self._plan = plan
        self._tried = 0
        self._has_stopped = False

    def prefill(self, given: Any) -> Tensor:
        """As the other device, unless it fails.

        Raises:
            DeviceFailedError: as planned.
        """
        return self._step(self._device.prefill, given)

    def decode(self, given: Any) -> Tensor:
        """As the other device, unless it fails.

        Raises:
            DeviceFailedError: as planned.
        """
        return self._step(self._device.decode, given)

    def compute(self, given: Any) -> Tensor:
        """As the other device, unless it fails.

        Raises:
            DeviceFailedError: as planned.
        """
        return self._step(self._device.compute, given)

    def load(self, blocks: Tensor, other: PagedDevice, theirs: Tensor) -> None:
        """As the other device."""
        self._device.load(blocks, other, theirs)

    def renew(self) -> None:
        """Put one in its place whose cache is empty."""
        self._device, self._has_stopped = deepcopy(self._empty), False

    def _step(self, step: Callable[[Any], Tensor], given: Any) -> Tensor:
        failure = Failure.STOPPED if self._has_stopped else self._plan.get(self._tried)
        self._tried += 1
        self._has_stopped = failure is Failure.STOPPED
        if failure is None:
            return step(given)
        if failure is Failure.RESULT_LOST:
            step(given)
        raise DeviceFailedError(failure)


class LostError(Exception):
    """What a failed device has cost, and must not."""


@define
class Recovery:
    """What follows a failure: the step is tried again, on a new device if the old one stopped.

    `restarts`: how often it did. Source: engine/core/serving.py, a device may fail.
    """

    scheduler: EngineScheduler[Any, Any]
    device: FailingDevice
    restarts: int = 0

    def __attrs_post_init__(self) -> None:
        self.scheduler.recover = self.recover

    def recover(self, failure: Failure, before: Any) -> None:
        """The step that began in the state `before` has failed.

        Raises:
            LostError: it has changed the state, or a restart has lost or kept what it must not.
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
    """All wait, those in front that were admitted; nothing is held, nothing can be hit."""
    waiting = [row.id for row in before.waiting]
    present, wait = {row.id for row in before.present}, [row.id for row in after.waiting]
    _refuse({*wait} != present, f"waiting after the restart: {wait}, present: {sorted(present)}")
    _refuse(len({*wait}) < len(wait), f"one waits twice after the restart: {wait}")
    stayed = [request_id for request_id in wait if request_id in waiting]
    _refuse(stayed != waiting, f"the order of those that waited: {stayed}, before {waiting}")
    pool = after.pool
    _refuse(bool(pool.references), f"blocks are held after the restart: {pool.references}")
    _refuse(bool(pool.cached or pool.keys), f"blocks can be hit after the restart: {pool.cached}")
    _refuse(len({*pool.free}) != pool.size, f"free after the restart: {pool.free} of {pool.size}")


def _refuse(wrong: bool, what: str) -> None:
    if wrong:
        raise LostError(what)
