"""A driver as a target of the fuzzer and of replays: asked step by step, one line for each."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from attrs import define, field

from checks.conformance.leftout import FIELDS
from checks.fuzz.subjects import SUBJECTS
from checks.fuzz.target import Subject
from checks.harness.driver.client import Driver
from checks.harness.driver.protocol import Action
from checks.policies.spyre.driver.told import Teller
from checks.releases.environments import command_of
from spec.core.requests import BlockKeys, Request
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context, Step


class ScheduleError(Exception):
    """What the driver's scheduler raised instead of taking the step."""


@define
class DriverTarget:
    """Implements `Target`; its episode has begun."""

    driver: Driver
    teller: Teller
    _arrivals: list[str] = field(factory=list, init=False)
    _aborts: list[str] = field(factory=list, init=False)

    def arrive(self, request_id: str) -> None:
        """Told with the next step."""
        self._arrivals.append(request_id)

    def abort(self, request_id: str) -> None:
        """Told with the next step."""
        self._aborts.append(request_id)

    def step(self, index: int, time: float, ends: Collection[str] | None = None) -> Step:
        """One scheduler step.

        Raises:
            ScheduleError: the scheduler raised.
            DriverGoneError: the driver ended.
        """
        told = None if ends is None else tuple(sorted(ends))
        action = Action(tuple(self._arrivals), tuple(self._aborts), ends=told)
        self._arrivals.clear()
        self._aborts.clear()
        played = self.driver.play([action])
        if played.failure is not None:
            raise ScheduleError(str(played.failure))
        return self.teller.step(played.records[0], action, index, time)


@contextmanager
def subject_named(name: str) -> Iterator[Subject]:
    """The engine, the reference, or a driver by its name or file, which is started for it.

    Raises:
        InputError: there is no such driver, or it is not installed.
        DriverError: it cannot be started.
    """
    if name in SUBJECTS:
        yield SUBJECTS[name]
        return
    driver = Driver(command_of(name))
    try:
        yield subject_of(driver)
    finally:
        driver.close()


def subject_of(driver: Driver) -> Subject:
    """The driver for the fuzzer and for replays, one episode at a time."""

    def begun(config: SpyreConfig, requests: Iterable[Request]) -> DriverTarget:
        by_id = {one.id: one for one in requests}
        failure = driver.start(config, by_id.values())
        if failure is not None:
            raise ScheduleError(str(failure))
        ctx = Context(config, by_id, BlockKeys(by_id, config.block_size))
        return DriverTarget(driver, Teller(ctx))

    hello = driver.hello
    leaves_out = FIELDS[hello.policy].not_compared(hello.left_out)
    return Subject(hello.name, begun, leaves_out, hello.can_do)
