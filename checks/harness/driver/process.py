"""Driver processes: start them, exchange lines with them, and end them with their process group.

Every wait has a deadline. A driver that closes a stream and lives on counts as ended. Of its
standard error the last bytes are kept.
"""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from math import inf
from pathlib import Path
from typing import Any
from weakref import finalize

from checks.ending import OutOfTimeError, undivided
from checks.harness.driver.protocol import DriverError, read_line
from checks.harness.system import Json
from spec.core.errors import cannot

DRIVER_FILES = Path(__file__).parents[2] / "drivers"
START_S = 180.0  # loading torch from a cold disk takes long
ANSWER_S = 120.0
ANSWER_BEYOND_S = 10.0  # at least, however little time a campaign has left
MOST_ANSWER_BYTES = 2**26
_LAST_LINES, _LAST_LINE_CHARACTERS, _LAST_BYTES = 8, 400, 2**16
_LAST_READS = 64  # of standard error at the end: another process may go on to fill the pipe
_LEAVE_S = 0.3  # from the end of its streams to the end of the process

# Variables of Python that name places and encodings. Drivers get no others: PYTHONOPTIMIZE would
# remove the assertions of a release.
_PYTHON_VARIABLES = frozenset(
    f"PYTHON{name}"
    for name in (
        *("PATH", "HASHSEED", "UTF8", "IOENCODING", "COERCECLOCALE", "UNBUFFERED"),
        *("USERBASE", "NOUSERSITE", "PYCACHEPREFIX", "DONTWRITEBYTECODE"),
    )
)


def plain_environment() -> dict[str, str]:
    """This process's variables without those that change what a Python program does."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTHON") or name in _PYTHON_VARIABLES
    }


def driver_environment() -> dict[str, str]:
    """This process's variables, with `lockstep_driver` on the path of a driver in Python."""
    variables = plain_environment()
    paths = (str(DRIVER_FILES), variables.get("PYTHONPATH", ""))
    return {**variables, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


_until: ContextVar[float] = ContextVar("until", default=inf)


@contextmanager
def answers_until(moment: float | None) -> Iterator[None]:
    """Within the block, drivers must answer by this moment, or soon after it.

    `moment`: on the clock of `time.monotonic`; None: no limit.
    """
    token = _until.set(inf if moment is None else moment)
    try:
        yield
    finally:
        _until.reset(token)


class DriverGoneError(Exception):
    """The driver ended, or did not answer in time."""


class _Deadline:
    """The moment by which a driver must have answered."""

    def __init__(self, most_seconds: float, beyond_seconds: float) -> None:
        self._most, began = most_seconds, time.monotonic()
        self.seconds = min(most_seconds, max(_until.get() - began, beyond_seconds))
        self._moment = began + self.seconds

    @property
    def left(self) -> float:
        """Seconds until the deadline."""
        return self._moment - time.monotonic()

    @property
    def ends_the_work(self) -> bool:
        """True if the limit is that of the campaign, not that of one answer."""
        return self.seconds < self._most


class DriverProcess:
    """A running driver process; it exchanges lines."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start the driver in a process group of its own.

        Raises:
            DriverError: it cannot be started.
        """
        with undivided():
            guardian = _guardian()
            self._end = finalize(self, _end, guardian, os.getpid())
            try:
                self._process = _started(command, guardian.pid)
            except DriverError:
                self._end()
                raise
        self._unread, self._errors = b"", b""
        for stream in (self._process.stdin, self._process.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)

    def close(self) -> None:
        """Kill the process group."""
        self._end()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def hello(self, start_seconds: float = START_S) -> str:
        """The first line, in which the driver introduces itself.

        Raises:
            DriverGoneError: the driver ended.
            DriverError: the line is too long.
            OutOfTimeError: there was none within `start_seconds`.
        """
        with answers_until(time.monotonic() + start_seconds):
            return self.line(inf, 0.0)

    def ask(self, message: Json) -> Json:
        """The answer to a line of the protocol.

        Raises:
            DriverGoneError: the driver ended, or did not answer in time.
            DriverError: the answer is no JSON object.
            OutOfTimeError: it did not answer, and the time for the work is over.
        """
        self.send(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        return read_line(self.line(ANSWER_S, ANSWER_BEYOND_S))

    def send(self, line: bytes) -> None:
        """Send a line.

        Raises:
            DriverGoneError: the driver ended, closed its input, or does not read.
            OutOfTimeError: it does not read, and the time for the work is over.
        """
        assert self._process.stdin is not None
        deadline, rest = _Deadline(ANSWER_S, ANSWER_BEYOND_S), memoryview(line)
        while rest:
            self._wait([], [self._process.stdin], deadline, "read its input")
            try:
                rest = rest[self._process.stdin.write(rest) or 0 :]
            except BrokenPipeError:
                raise self._closed("standard input") from None

    def line(self, most_seconds: float, beyond_seconds: float) -> str:
        """The driver's next line.

        Raises:
            DriverGoneError: it ended, closed its output, or said nothing for `most_seconds`.
            DriverError: the line is too long.
            OutOfTimeError: it said nothing until the time for the work was over, or for
                `beyond_seconds` if that is longer.
        """
        assert self._process.stdout is not None
        deadline = _Deadline(most_seconds, beyond_seconds)
        parts, size = [self._unread], 0
        while b"\n" not in parts[-1]:
            self._wait([self._process.stdout], [], deadline, "answer")
            part = os.read(self._process.stdout.fileno(), 1 << 20)
            if not part:
                raise self._closed("standard output")
            parts.append(part)
            size += len(part)
            if size > MOST_ANSWER_BYTES:
                allowed = f"a line of at most {MOST_ANSWER_BYTES:,} bytes"
                raise DriverError("driver's line", f"over {size:,} bytes", allowed)
        line, _, self._unread = b"".join(parts).partition(b"\n")
        return line.decode(errors="replace")

    def _wait(self, outputs: list[Any], inputs: list[Any], deadline: _Deadline, due: str) -> None:
        """Wait for one of these streams to be ready, and read standard error meanwhile.

        Raises:
            DriverGoneError: none is ready within the time for an answer.
            OutOfTimeError: none is ready, and the time for the work is over.
        """
        errors: list[Any] = [self._process.stderr]
        while True:
            left = deadline.left
            ready = select.select([*outputs, *errors], inputs, [], left) if left > 0 else ([], [])
            if not any(ready):
                said = f"did not {due} within {deadline.seconds:.0f} s"
                if deadline.ends_the_work:
                    raise OutOfTimeError(f"the driver {said}")
                raise self._gone(said)
            if self._process.stderr in ready[0] and not self._read_errors():
                errors = []
            if ready[1] or any(stream in outputs for stream in ready[0]):
                return

    def _read_errors(self) -> bool:
        """Read from standard error without waiting; false at its end."""
        assert self._process.stderr is not None
        with suppress(BlockingIOError):
            part = os.read(self._process.stderr.fileno(), _LAST_BYTES)
            self._errors = (self._errors + part)[-_LAST_BYTES:]
            return bool(part)
        return True

    def _closed(self, stream: str) -> "DriverGoneError":
        """The error for a driver that closed a stream; most have ended then."""
        began = time.monotonic()
        while self._process.poll() is None and time.monotonic() - began < _LEAVE_S:
            time.sleep(0.01)
        code = self._process.poll()
        return self._gone(f"closed its {stream}" if code is None else f"ended with code {code}")

    def _gone(self, what: str) -> "DriverGoneError":
        """The error for a driver that ended, with the last lines of its standard error."""
        for _ in range(_LAST_READS):
            before = self._errors
            if not self._read_errors() or self._errors == before:
                break
        lines = self._errors.decode(errors="replace").strip().splitlines()[-_LAST_LINES:]
        cut = (line[-_LAST_LINE_CHARACTERS:] for line in lines)
        return DriverGoneError("\n".join([f"it {what}", *cut]))


def _guardian() -> subprocess.Popen[bytes]:
    """A process that leads the group of a driver, and kills it when this process has ended."""
    return subprocess.Popen(
        ["/bin/sh", "-c", "read -r _; kill -9 0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,  # an interrupt of the terminal is ours to handle
    )


def _started(command: Sequence[str], group: int) -> subprocess.Popen[bytes]:
    """The driver's process, in this group.

    Raises:
        DriverError: it cannot be started.
    """
    try:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=driver_environment(),
            bufsize=0,
            process_group=group,
        )
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise cannot("start", command[0], error, DriverError) from None


def _end(guardian: subprocess.Popen[bytes], owner: int) -> None:
    """Kill a driver's group, unless this process is a fork of its owner."""
    if owner != os.getpid():
        return
    with suppress(ProcessLookupError):
        os.killpg(guardian.pid, signal.SIGKILL)
    guardian.wait()
    assert guardian.stdin is not None
    guardian.stdin.close()
