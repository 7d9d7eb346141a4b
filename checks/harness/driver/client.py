"""The client of a driver process."""

from collections.abc import Iterable, Sequence

from checks.ending import OutOfTimeError
from checks.harness.case import Case
from checks.harness.driver.process import START_S, DriverGoneError, DriverProcess
from checks.harness.driver.protocol import (
    DriverError,
    Played,
    failure_of,
    hello_of,
    play_line,
    played,
    start_line,
)
from checks.harness.system import Action, Failure


class Driver:
    """A running driver: `start` an episode, `play` its steps, in the end `close`."""

    def __init__(self, command: Sequence[str], start_seconds: float = START_S) -> None:
        """Start the process and read its first line.

        Raises:
            DriverError: it cannot be started, or its first line breaks the protocol.
            OutOfTimeError: there is no line within `start_seconds`.
        """
        self._process = DriverProcess(command)
        try:
            self.hello = hello_of(self._process.hello(start_seconds))
        except DriverGoneError as gone:
            self.close()
            raise DriverError(f"{command[-1]} does not run as a driver", str(gone), "") from None
        except OutOfTimeError as error:
            self.close()
            raise OutOfTimeError(f"{error} after its start; --start-time gives it more") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill the process group."""
        self._process.close()

    def start(self, case: Case) -> Failure | None:
        """Begin an episode; returns the failure if the scheduler refuses it.

        Raises:
            DriverGoneError: the driver ended.
        """
        answer = self._process.ask(start_line(case, tensors="tensors" in self.hello.abilities))
        return failure_of(answer["error"]) if "error" in answer else None

    def play(self, actions: Iterable[Action]) -> Played:
        """Take a step for each action; an error of the scheduler is part of the answer.

        Raises:
            DriverGoneError: the driver ended.
            DriverError: it breaks the protocol.
        """
        return played(self._process.ask(play_line(actions)))
