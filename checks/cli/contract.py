"""What every command keeps to, whatever ends it: the exit code, one line, what was saved.

Whatever is no verdict and no error of the input is a failure of the tool, and never an exit code
that a verdict has. What goes to the screen is not needed for the files: a closed pipe or a full
disk there does not end the work, it shows in the exit code.
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
TRACEBACK = "LOCKSTEP_TRACEBACK"  # the variable that shows where the tool itself failed


def kept(work: Callable[[], Any]) -> int:
    """The exit code of a command, whose `work` gives it, or nothing if all holds."""
    with (
        _shown(sys.stderr) as err,
        redirect_stderr(err),
        _shown(sys.stdout) as out,
        redirect_stdout(out),
        signals_end_the_work(),
        noting_files() as written,
    ):
        code, end = _ending_of(work)
        out.flush()
        if isinstance(end, KeyboardInterrupt):  # a codec that it came upon words it anew
            end = ended() or end
        end = end or ended() or out.error
        if end is None:
            return code
        if isinstance(end, click.ClickException):
            end.show()
            return end.exit_code
        code, line = _told(end, out)
        saved = written if code in (INCOMPLETE, FAILED) else ()
        click.echo(printable(f"lockstep: {line}{_saved(saved)}"), err=True)
        return code


def refuse_too_little_memory() -> None:
    """Refuse a limit under which libraries end the process by themselves, with codes of their own.

    Raises:
        MemoryError: the address space is limited to less (`ulimit -v`).
    """
    limit, _ = getrlimit(RLIMIT_AS)
    if limit != RLIM_INFINITY and limit < _LEAST_MEMORY_BYTES:
        found, least = limit >> 20, _LEAST_MEMORY_BYTES >> 20
        raise MemoryError(f"{found} MiB of memory are allowed (ulimit -v), {least} are needed")


def refuse_missing_directory() -> None:
    """Refuse a working directory that was removed: no file could be named.

    Raises:
        InputError: it was.
    """
    try:
        Path.cwd()
    except OSError as error:
        raise cannot("read", "the working directory", error, InputError) from None


def _ending_of(work: Callable[[], Any]) -> tuple[int, BaseException | None]:
    """The code that the work gives, and what ended it instead."""
    try:
        return work() or HOLDS, None
    except click.exceptions.Exit as shown:  # its help, or the version
        return shown.exit_code, None
    except BaseException as error:
        return HOLDS, error


def _told(end: BaseException, out: "_Shown") -> tuple[int, str]:
    """The exit code and the line for what ended a command."""
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


# --- what is shown --------------------------------------------------------------------------------


class _Shown:
    """A standard stream that notes its first error and shows nothing from then on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        """Show the text, if nothing went wrong before."""
        self._unless_broken(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Have all shown that was written."""
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
    """The stream while a command runs; what could not be shown is forgotten after it."""
    shown = _Shown(stream)
    yield shown
    shown.flush()
    if shown.error is not None:
        with suppress(OSError, ValueError):  # else Python tries again when it ends, and complains
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def with_standard_streams() -> None:
    """Have standard streams that can show every text, where the process was started without.

    A closed output is like a pipe that nothing reads from.
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
    """Open the descriptor: the null device for input and errors, a closed pipe for output."""
    if number == 1:
        read, found = os.pipe()
        os.close(read)
    else:
        found = os.open(os.devnull, os.O_RDWR)
    if found != number:
        os.dup2(found, number)
        os.close(found)
