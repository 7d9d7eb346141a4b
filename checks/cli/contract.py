"""The contract of every command: its exit code, one line of reason, and the saved files.

An outcome that is neither a verdict nor an input error is a failure of the tool and never gets the
exit code of a verdict. A closed pipe or full disk behind standard output does not end the work: the
files are written, and the exit code reports it.
"""

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from errno import EPIPE
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit
from typing import Any, TextIO

import click

from checks.cli import FAILED, HOLDS, INCOMPLETE, USAGE
from checks.ending import OutOfTimeError, WorkerDiedError, ended, signals_end_the_work
from checks.export.files import noting_files
from checks.export.printable import printable
from spec.core.errors import InputError, cannot

_LEAST_MEMORY_BYTES = 320 << 20
TRACEBACK = "LOCKSTEP_TRACEBACK"  # the variable that makes a failure of the tool print a traceback


def run_command(work: Callable[[], Any]) -> int:
    """Run a command and return its exit code; `work` returns it, or None if all holds."""
    with (
        _shown(sys.stderr) as err,
        redirect_stderr(err),
        _shown(sys.stdout) as out,
        redirect_stdout(out),
        signals_end_the_work(),
        noting_files() as written,
    ):
        code, end = _exit_code_and_error(work)
        out.flush()
        if isinstance(end, KeyboardInterrupt):  # a codec may have replaced the signal's text
            end = ended() or end
        end = end or ended() or out.error
        if end is None:
            return code
        if isinstance(end, click.ClickException):
            end.show()
            return end.exit_code
        code, line = _code_and_reason(end, out)
        saved = written if code in (INCOMPLETE, FAILED) else ()
        click.echo(printable(f"lockstep: {line}{_saved(saved)}"), err=True)
        return code


def refuse_too_little_memory() -> None:
    """Refuse a memory limit under which libraries end the process with exit codes of their own.

    Raises:
        MemoryError: the address space is limited to less than is needed (`ulimit -v`).
    """
    limit, _ = getrlimit(RLIMIT_AS)
    if limit != RLIM_INFINITY and limit < _LEAST_MEMORY_BYTES:
        allowed, least = limit >> 20, _LEAST_MEMORY_BYTES >> 20
        raise MemoryError(f"{allowed} MiB of memory are allowed (ulimit -v), {least} are needed")


def refuse_missing_directory() -> None:
    """Refuse a removed working directory.

    Raises:
        InputError: the working directory does not exist.
    """
    try:
        Path.cwd()
    except OSError as error:
        raise cannot("read", "the working directory", error, InputError) from None


def _exit_code_and_error(work: Callable[[], Any]) -> tuple[int, BaseException | None]:
    """The exit code that the work returned, and the exception that ended it, or None."""
    try:
        return work() or HOLDS, None
    except click.exceptions.Exit as shown:  # its help, or the version
        return shown.exit_code, None
    except BaseException as error:
        return HOLDS, error


def _code_and_reason(end: BaseException, out: "_Shown") -> tuple[int, str]:
    """The exit code and the line for the exception that ended a command."""
    match end:
        case InputError():
            return USAGE, str(end)
        case KeyboardInterrupt() | click.Abort():
            return INCOMPLETE, f"incomplete: ended by {str(end) or 'an interrupt'}"
        case OutOfTimeError():
            return INCOMPLETE, f"incomplete: {end}"
        case WorkerDiedError():
            return FAILED, f"failed: {end}"
        case MemoryError():
            return FAILED, f"failed: {str(end) or 'the memory is used up'}"
        case OSError(errno=number) if number == EPIPE:
            where = "standard output" if end is out.error else end.filename or "a pipe"
            return INCOMPLETE, f"incomplete: {where} was closed before all was written"
        case OSError():
            where = "standard output" if end is out.error else end.filename
            return FAILED, f"failed: {f'{where}: ' if where else ''}{end.strerror or end}"
    if os.environ.get(TRACEBACK):
        traceback.print_exception(end)
    last = traceback.extract_tb(end.__traceback__)[-1]
    place = f"{Path(last.filename).name}, line {last.lineno}"
    says = " ".join(str(end).split())
    return FAILED, f"failed: {type(end).__name__}: {says} ({place}; {TRACEBACK}=1 shows more)"


def _saved(written: Sequence[Path]) -> str:
    return f"; saved: {', '.join(map(str, dict.fromkeys(written)))}" if written else ""


# --- standard streams -----------------------------------------------------------------------------


class _Shown:
    """A standard stream that stores its first error and drops all output after it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Write the text, unless the stream has failed."""
        self._unless_broken(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Flush the stream, unless it has failed."""
        self._unless_broken(self._stream.flush)

    def _unless_broken(self, show: Callable[[], object]) -> None:
        if self.error is None:
            try:
                show()
            except OSError as error:
                self.error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def _shown(stream: TextIO) -> Iterator[_Shown]:
    """The stream while a command runs; output that failed is dropped at the end."""
    shown = _Shown(stream)
    yield shown
    shown.flush()
    if shown.error is not None:
        with suppress(OSError, ValueError):  # else Python flushes again at exit, and reports it
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def with_standard_streams() -> None:
    """Open missing standard streams, and make all of them accept every text.

    A missing standard output behaves like a pipe without a reader.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _fill(number)
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            ascii_only = stream.encoding.lower() in ("ascii", "us-ascii", "ansi_x3.4-1968")
            encoding = "utf-8" if ascii_only else stream.encoding
            stream.reconfigure(encoding=encoding, errors="backslashreplace")


def _fill(number: int) -> None:
    """Open a file descriptor: the null device for input and errors, a closed pipe for output."""
    if number == 1:
        read, descriptor = os.pipe()
        os.close(read)
    else:
        descriptor = os.open(os.devnull, os.O_RDWR)
    if descriptor != number:
        os.dup2(descriptor, number)
        os.close(descriptor)
