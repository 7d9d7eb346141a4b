"""Where episodes are run: a driver that is started when it is needed and again when it ended."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from checks.conformance.client import Driver, DriverGoneError
from checks.conformance.protocol import Action, DriverFailure, Hello, Json, Played
from checks.fuzz.cases import Case


class DriverLab:
    """Implements `Lab` with drivers of one kind; use it in a `with` block."""

    def __init__(self, launch: Callable[[], Driver]) -> None:
        """Start the first driver.

        Raises:
            DriverError: it cannot be started.
        """
        self._launch = launch
        self._driver: Driver | None = launch()
        self.hello: Hello = self._driver.hello

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._drop()

    def play(self, case: Case, actions: Sequence[Action]) -> Played:
        """The whole script in one line; if the driver ends on the way, again step by step.

        Raises:
            DriverError: the driver does not speak the protocol, or cannot be started again.
        """
        try:
            driver = self._live()
            failure = driver.start(case.config, case.requests)
            return driver.play(actions) if failure is None else Played((), failure)
        except DriverGoneError:
            self._drop()
        return self._step_by_step(case, actions)

    def _step_by_step(self, case: Case, actions: Sequence[Action]) -> Played:
        records: list[Json] = []
        try:
            driver = self._live()
            failure = driver.start(case.config, case.requests)
            for action in actions:
                if failure is not None:
                    break
                taken = driver.play([action])
                records += taken.records
                failure = taken.failure
        except DriverGoneError as gone:
            self._drop()
            failure = DriverFailure("DriverGone", str(gone), "")
        return Played(records, failure)

    def _live(self) -> Driver:
        if self._driver is None:
            self._driver = self._launch()
        return self._driver

    def _drop(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None
