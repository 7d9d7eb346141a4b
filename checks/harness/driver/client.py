"""A driver's process: started, asked line by line, its end noticed, its last words kept."""

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from multiprocessing import parent_process
from pathlib import Path
from weakref import finalize

from checks.ending import OutOfTimeError, ends_with_main_process
from checks.harness.case import Case
from checks.harness.driver.protocol import (
    DriverError,
    Played,
    failure_of,
    hello_of,
    play_line,
    played,
    read_line,
    start_line,
)
from checks.harness.system import Action, Failure, Json

DRIVER_FILES = Path(__file__).parents[2] / "drivers"
START_S = 180.0  # loading torch from a cold disk takes long
ANSWER_S = 120.0
ANSWER_BEYOND_S = 10.0  # at least, however little time a campaign has left
MOST_ANSWER_BYTES = 2**26
_LAST_LINES = 8


def driver_environment() -> dict[str, str]:
    """This process's variables, with `lockstep_driver` on the path of a driver in Python."""
    paths = (str(DRIVER_FILES), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


_until: ContextVar[float] = ContextVar("until", default=inf)


@contextmanager
def answers_until(moment: float | None) -> Iterator[None]:
    """While it lasts, drivers have no more time than up to this moment, or little more.

    `moment`: on the clock of `time.monotonic`; None is no limit.
    """
    token = _until.set(inf if moment is None else moment)
    try:
        yield
    finally:
        _until.reset(token)


class DriverGoneError(Exception):
    """The driver ended, or did not answer in time."""


class Driver:
    """A running driver. `start` an episode, then `play` its steps; in the end, `close` it."""

    def __init__(self, command: Sequence[str], start_seconds: float = START_S) -> None:
        """Start the process and read its first line, for which it has `start_seconds`.

        Raises:
            DriverError: it cannot be started, or does not say hello.
            OutOfTimeError: it has not said hello by then.
        """
        self._command = list(command)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the driver
        self._unread = b""
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=driver_environment(),
                bufsize=0,
                # An interrupt of the terminal is ours to handle. A worker ends with its drivers.
                process_group=0 if parent_process() is None else None,
                preexec_fn=ends_with_main_process(),
            )
        except OSError as error:
            self._errors.close()
            allowed = f"a driver that can be started ({error.strerror})"
            raise DriverError("driver", self._command[0], allowed) from None
        finalize(self, _end, self._process, os.getpid())
        try:
            with answers_until(time.monotonic() + start_seconds):
                self.hello = hello_of(self._line(inf, 0.0))
        except DriverGoneError as gone:
            self.close()
            raise DriverError("driver", " ".join(command), f"a driver that runs; {gone}") from None
        except OutOfTimeError as error:
            self.close()
            raise OutOfTimeError(f"{error} after its start; --start-time gives it more") from None
        except DriverError:
            self.close()
            raise

    def close(self) -> None:
        """End the process; it has no say in it."""
        _end(self._process, os.getpid())
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def start(self, case: Case) -> Failure | None:
        """Begin an episode; what the scheduler refuses is returned.

        Raises:
            DriverGoneError: the driver ended.
        """
        answer = self._ask(start_line(case, tensors="tensors" in self.hello.abilities))
        return failure_of(answer["error"]) if "error" in answer else None

    def play(self, actions: Iterable[Action]) -> Played:
        """Take one step for each action; errors of the scheduler are part of the answer.

        Raises:
            DriverGoneError: the driver ended.
            DriverError: it does not speak the protocol.
        """
        return played(self._ask(play_line(actions)))

    def _ask(self, message: Json) -> Json:
        assert self._process.stdin is not None
        try:
            self._write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        except BrokenPipeError:
            raise DriverGoneError(self._last_words("ended")) from None
        return read_line(self._line(ANSWER_S, ANSWER_BEYOND_S))

    def _write(self, line: bytes) -> None:
        """All of it: an unbuffered pipe takes a part at a time."""
        assert self._process.stdin is not None
        rest = memoryview(line)
        while rest:
            rest = rest[self._process.stdin.write(rest) :]

    def _line(self, most_seconds: float, beyond_seconds: float) -> str:
        """The driver's next line.

        Raises:
            DriverGoneError: it ended, or said nothing for so long.
            DriverError: the line is too long.
            OutOfTimeError: it said nothing until the time is over, and a bit beyond.
        """
        assert self._process.stdout is not None
        began = time.monotonic()
        seconds = min(most_seconds, max(_until.get() - began, beyond_seconds))
        parts, size = [self._unread], 0
        while b"\n" not in parts[-1]:
            left = began + seconds - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                said = f"did not answer within {seconds:.0f} s"
                if seconds < most_seconds:
                    raise OutOfTimeError(f"the driver {said}")
                raise DriverGoneError(self._last_words(said))
            part = os.read(self._process.stdout.fileno(), 1 << 20)
            if not part:
                raise DriverGoneError(self._last_words("ended"))
            parts.append(part)
            size += len(part)
            if size > MOST_ANSWER_BYTES:
                allowed = f"a line of at most {MOST_ANSWER_BYTES:,} bytes"
                raise DriverError("driver's line", f"over {size:,} bytes", allowed)
        line, _, self._unread = b"".join(parts).partition(b"\n")
        return line.decode(errors="replace")

    def _last_words(self, what: str) -> str:
        """What happened, with the exit code and the last lines of standard error."""
        said = f"ended with code {self._process.wait()}" if what == "ended" else what
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return "\n".join([f"it {said}", *lines[-_LAST_LINES:]])


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    """End a driver; one that a worker process inherits is not its own."""
    if owner != os.getpid():
        return
    if process.poll() is None:
        process.kill()
    process.wait()
