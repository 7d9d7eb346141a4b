"""A driver as a system; its process is started when needed, and again after it ended."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Protocol

from attrs import frozen

from checks.ending import OutOfTimeError
from checks.harness.case import Case
from checks.harness.decoding import RecordError, decoded
from checks.harness.driver.client import Driver
from checks.harness.driver.process import START_S, DriverGoneError
from checks.harness.driver.protocol import DriverError, Played
from checks.harness.policy import evidence_of
from checks.harness.system import Action, Failure, Hello, Taken
from checks.registry import claims_of
from checks.remembered import remembering
from spec.core.errors import InputError

_PART = 64  # steps in one line


class Client(Protocol):
    """Speaks to a driver in a process of its own, or in this one."""

    @property
    def hello(self) -> Hello:
        """The driver's first line."""

    def start(self, case: Case) -> Failure | None:
        """Begin an episode; returns the failure if the scheduler refuses it."""

    def play(self, actions: Iterable[Action]) -> Played:
        """Take a step for each action; an error of the scheduler is part of the answer."""

    def close(self) -> None:
        """End the driver."""


class DriverSystem:
    """Implements `System` with a driver; `launch` starts one, by default in its own process.

    `part`: how many steps are asked for in one line, whose actions are chosen ahead of the steps.
    """

    def __init__(self, launch: Callable[[], Client], part: int = _PART) -> None:
        """Start a driver.

        Raises:
            DriverError: it cannot be started.
        """
        self._launch = launch
        self._part = part
        self._driver: Client | None = launch()
        self.hello: Hello = self._driver.hello

    def close(self) -> None:
        """End the driver; the next case starts another."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def play(self, case: Case, actions: Iterable[Action]) -> Iterator[Taken | Failure]:
        """Play the case with many steps in a line; if the driver ends, again with one in a line.

        Raises:
            DriverError: the driver breaks the protocol, or cannot be started again.
            OutOfTimeError: it does not answer, and the time for the work is over.
        """
        episode, last_words = _Episode(case, iter(actions)), ""
        for length in (self._part, 1):
            try:
                yield from episode.taken(self._parts(episode, length))
                return
            except DriverGoneError as gone:
                self.close()
                last_words = str(gone)
            except (OutOfTimeError, InputError):  # a late answer must not meet the next line
                self.close()
                raise
        yield Failure("DriverGone", last_words)

    def _parts(self, episode: "_Episode", length: int) -> Iterator[Played]:
        """The answers to lines of `length` steps, up to the first failure.

        Raises:
            DriverGoneError: the driver ended.
        """
        driver = self._live()
        failure = driver.start(episode.case)
        if failure is not None:
            yield Played((), failure)
            return
        actions = episode.actions()
        while part := list(islice(actions, length)):
            played = driver.play(part)
            yield played
            if played.failure is not None:
                return

    def _live(self) -> Client:
        if self._driver is None:
            self._driver = self._launch()
        return self._driver


class _Episode:
    """A case and the actions chosen for it so far, which may be played again."""

    def __init__(self, case: Case, rest: Iterator[Action]) -> None:
        self.case = case
        self._rest = rest
        self._known: list[Action] = []
        self._taken = 0  # steps that were yielded
        policy = case.config.policy
        ctx = remembering(claims_of(policy).context_of(case.config, case.requests))
        self._decoder = evidence_of(policy).adapter.decoder(ctx)

    def actions(self) -> Iterator[Action]:
        """All actions from the first: those already chosen, then the rest."""
        return chain(list(self._known), map(self._noted, self._rest))

    def _noted(self, action: Action) -> Action:
        self._known.append(action)
        return action

    def taken(self, parts: Iterable[Played]) -> Iterator[Taken | Failure]:
        """The steps that were not yielded yet."""
        index = 0
        for played in parts:
            for record in played.records:
                if index >= len(self._known):
                    allowed = f"{len(self._known)}, one for each action"
                    raise DriverError("driver's steps", "more", allowed)
                if index >= self._taken:
                    yield self._step(record, index)
                    self._taken += 1
                index += 1
            if played.failure is not None:
                yield played.failure

    def _step(self, record: dict[str, object], index: int) -> Taken:
        """The step of a record.

        Raises:
            DriverError: a field of the record is missing or has another form.
        """
        action = self._known[index]
        if action.earlier is not None and action.earlier.record == record:
            self._decoder.pass_over(action.earlier.step, action)
            return action.earlier
        try:
            return Taken(decoded(self._decoder, record, action, index), record)
        except RecordError as error:
            raise DriverError(f"driver's {error.field}", error.found, error.allowed) from None


@frozen
class DriverCommand:
    """The command of a driver: a campaign's source, of which each process starts its own.

    `start_seconds`: until the driver's first line.
    """

    argv: tuple[str, ...]
    start_seconds: float = START_S

    def open(self) -> DriverSystem:
        """Start a driver.

        Raises:
            DriverError: it cannot be started.
        """
        return DriverSystem(lambda: Driver(self.argv, self.start_seconds))
