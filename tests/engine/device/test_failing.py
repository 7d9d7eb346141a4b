"""Device faults on demand: the state after a failed step, and a second run of the step."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from checks.mutants.failing import FailingDevice
from engine.core.faults import DeviceFailedError, Failure
from engine.core.tensors import Tensor
from engine.spyre.device import DecodeInput, PrefillInput, SpyreDevice
from spec.spyre.config import SpyreConfig
from tests.engine.device.batches import Row, config, decode_input, prefill_input
from tests.engine.device.serving import Server

ROW = Row.of([5, 6, 7], [3])
PREFILL = prefill_input(config(), ROW, 0)
DECODE = decode_input(config(), [Row(3, [5, 6, 7, 8], [3])])


class Watched(SpyreDevice):
    """Counts the steps that it is really asked to do."""

    done = 0

    def prefill(self, given: PrefillInput) -> Tensor:
        self.done += 1
        return super().prefill(given)

    def decode(self, given: DecodeInput) -> Tensor:
        self.done += 1
        return super().decode(given)


def failure_of(device: FailingDevice, given: PrefillInput | DecodeInput) -> str:
    try:
        device.prefill(given) if isinstance(given, PrefillInput) else device.decode(given)
    except DeviceFailedError as error:
        return str(error)
    return "it did not fail"


@pytest.mark.parametrize(
    ("failure", "done"), [(Failure.STEP_FAILED, 0), (Failure.RESULT_LOST, 1), (Failure.STOPPED, 0)]
)
def test_only_a_lost_result_was_computed(failure: Failure, done: int) -> None:
    watched = Watched(config())
    device = FailingDevice(watched, {0: failure})

    assert failure_of(device, PREFILL) == f"the device failed: {failure}"
    assert watched.done == done


def test_device_that_stopped_never_works_again() -> None:
    watched = Watched(config())
    device = FailingDevice(watched, {1: Failure.STOPPED, 3: Failure.RESULT_LOST})
    device.prefill(PREFILL)

    for _ in range(4):
        assert failure_of(device, DECODE) == "the device failed: stopped"
    assert watched.done == 1


class Again(FailingDevice):
    """Runs every step that failed again, until it does not fail."""

    retried = 0

    def _step(self, step: Callable[[Any], Tensor], given: Any) -> Tensor:
        try:
            return super()._step(step, given)
        except DeviceFailedError:
            self.retried += 1
            return self._step(step, given)


def device_that_fails_often(shape: SpyreConfig, draw: random.Random) -> Again:
    kinds = [Failure.STEP_FAILED, Failure.RESULT_LOST]
    plan = {step: draw.choice(kinds) for step in range(2_000) if draw.random() < 0.4}
    return Again(SpyreDevice(shape), plan)


def test_steps_that_are_run_again_change_nothing() -> None:
    """Many steps fail or lose their result, yet every token is that of the row served alone."""
    retried = 0
    for seed in range(10):
        draw = random.Random(seed)
        device = device_that_fails_often(config(), draw)

        for served in Server(config(), device, draw).steps(12):
            assert served.tokens == served.alone

        retried += device.retried

    assert retried > 100
