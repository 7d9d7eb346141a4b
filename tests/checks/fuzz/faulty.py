"""Targets with a planted fault: the reference, wrong in one place."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

import pytest
from attrs import frozen
from checks.fuzz.reference import ReferenceTarget, reference_target
from checks.fuzz.target import Subject

from spec.core.requests import Request
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Step
from tests.checks.faults.planting import Fault
from tests.checks.faults.spyre import FAULTS

BY_NAME = {fault.name: fault for fault in FAULTS}


@frozen
class FaultyTarget:
    """The reference with a fault that is switched in for its own calls only."""

    fault: Fault
    target: ReferenceTarget

    def arrive(self, request_id: str) -> None:
        with self._planted():
            self.target.arrive(request_id)

    def abort(self, request_id: str) -> None:
        with self._planted():
            self.target.abort(request_id)

    def step(self, index: int, time: float, ends: Collection[str] | None = None) -> Step:
        with self._planted():
            return self.target.step(index, time, ends)

    @contextmanager
    def _planted(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            self.fault.plant(patch)
            yield


def faulty(name: str) -> Subject:
    """The reference with the planted fault of this name."""
    fault = BY_NAME[name]

    def make(config: SpyreConfig, requests: Iterable[Request]) -> FaultyTarget:
        with pytest.MonkeyPatch.context() as patch:
            fault.plant(patch)
            return FaultyTarget(fault, reference_target(config, requests))

    return Subject(name, make)
