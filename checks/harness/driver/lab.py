"""Where episodes are run: a driver that is started when it is needed and again when it ended."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from types import TracebackType
from typing import Self

from checks.fuzz.cases import Case
from checks.harness.driver.client import Driver, DriverGoneError
from checks.harness.driver.protocol import Action, DriverFailure, Hello, Played

_PART = 64  # steps that are asked for in one line


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

    def play(self, case: Case, actions: Sequence[Action]) -> Iterator[Played]:
        """The script, many steps in a line; where the driver ends on the way, again one by one.

        Raises:
            DriverError: the driver does not speak the protocol, or cannot be started again.
        """
        came = 0  # steps
        try:
            for part in self._parts(case, actions, _PART):
                yield part
                came += len(part.records)
            return
        except DriverGoneError:
            self._drop()
        try:
            for index, part in enumerate(self._parts(case, actions, 1)):
                if index >= came:
                    yield part
        except DriverGoneError as gone:
            self._drop()
            yield Played((), DriverFailure("DriverGone", str(gone), ""))

    def _parts(self, case: Case, actions: Sequence[Action], length: int) -> Iterator[Played]:
        """So many steps at a time, up to the first that fails.

        Raises:
            DriverGoneError: the driver ended.
        """
        driver = self._live()
        failure = driver.start(case.config, case.requests, _external(case))
        if failure is not None:
            yield Played((), failure)
            return
        for start in range(0, len(actions), length):
            part = driver.play(actions[start : start + length])
            yield part
            if part.failure is not None:
                return

    def _live(self) -> Driver:
        if self._driver is None:
            self._driver = self._launch()
        return self._driver

    def _drop(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None


@cache
def own_lab(command: tuple[str, ...]) -> DriverLab:
    """The driver of this process, one for all episodes; closes its input when the process ends.

    Raises:
        DriverError: it cannot be started.
    """
    return DriverLab(lambda: Driver(command))


def start_own_lab(command: tuple[str, ...]) -> None:
    """Have the driver of this process at hand.

    Raises:
        DriverError: it cannot be started.
    """
    own_lab(command)


def _external(case: Case) -> dict[str, int]:
    """Tokens that a connector has, by request."""
    return {one: has.tokens for one, has in case.external.items()}
