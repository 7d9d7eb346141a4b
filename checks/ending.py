"""What ends work before its time: a signal, the death of a worker process, the end of memory.

A signal ends the work where it stands, or where the work itself looks for it (`deferred`). What was
found by then is kept and reported; `ended` says that it is not all, and the command's exit code.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection, parent_process
from multiprocessing.process import BaseProcess
from threading import Thread
from time import monotonic
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ONE_SIGNAL_SECONDS = 0.1  # terminals and `timeout` send the same signal twice, to group and child


class EndedBySignalError(KeyboardInterrupt):
    """A signal, named by the text, ends the work."""


class WorkerDiedError(RuntimeError):
    """A worker process ended before its piece of work, which is lost."""


class OutOfTimeError(RuntimeError):
    """The time for the work is over, in the midst of a piece of it."""


EARLY_ENDS = (KeyboardInterrupt, OutOfTimeError, WorkerDiedError, MemoryError)
"""What ends work and leaves what was found by then."""


class _State:
    """Of this process: what ended its work, when a signal came, how many ask to look themselves."""

    def __init__(self) -> None:
        self.ended: BaseException | None = None
        self.signalled: float | None = None
        self.number: int | None = None  # of the signal, until it is passed on
        self.deferring = 0


_state = _State()


def ended() -> BaseException | None:
    """What ended the work early, if anything has."""
    return _state.ended


def stopping() -> bool:
    """True once a signal has asked this process to end its work."""
    return _state.signalled is not None


@contextmanager
def keeping_results() -> Iterator[None]:
    """A block whose early end leaves what was found by then; `ended` says what it was."""
    try:
        yield
    except EARLY_ENDS as end:
        _state.ended = _state.ended or end


@contextmanager
def deferred() -> Iterator[None]:
    """While it lasts the first signal only makes `stopping` true; another one ends the block."""
    _state.deferring += 1
    try:
        yield
    finally:
        _state.deferring -= 1


@contextmanager
def undivided() -> Iterator[None]:
    """A block that a signal does not cut in two: it ends the work behind it.

    Raises:
        EndedBySignalError: a signal came, and the block was not `deferred` itself.
    """
    with deferred():
        yield
    if not _state.deferring:
        refuse_to_go_on()


def refuse_to_go_on() -> None:
    """End the work if a signal has asked for it.

    Raises:
        EndedBySignalError: it has.
    """
    if stopping():
        raise _state.ended or EndedBySignalError("a signal")


# --- signals --------------------------------------------------------------------------------------


@contextmanager
def signals_end_the_work() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP end what runs in the block, but those that are ignored already."""
    _state.ended = _state.signalled = None
    heeded = [one for one in _SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]
    before = {one: signal.signal(one, _end) for one in heeded}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        _state.ended = _state.signalled = None


@contextmanager
def signals_passed_on() -> Iterator[None]:
    """A block whose end is not the process's: a signal that ended work in it is sent once more."""
    _state.number = None
    try:
        yield
    finally:
        number, _state.number = _state.number, None
        if number is not None:
            os.kill(os.getpid(), number)


def ignore_signals() -> None:
    """From here on no signal ends the process, but SIGKILL."""
    for one in _SIGNALS:
        signal.signal(one, signal.SIG_IGN)


def _end(number: int, _frame: FrameType | None) -> None:
    now, first = monotonic(), _state.signalled
    if first is not None and now - first < _ONE_SIGNAL_SECONDS:
        return
    end = EndedBySignalError(signal.Signals(number).name)
    if first is None:
        _state.ended, _state.signalled, _state.number = end, now, number
    if first is not None or not _state.deferring:
        raise end


# --- worker processes -----------------------------------------------------------------------------


def begin_as_worker() -> None:
    """Let the main process decide when this one ends, with all that it starts.

    It has a process group of its own. SIGINT, which only the main process sends, makes `stopping`
    true. When the main process dies, so does the group; drivers end with the worker.
    """
    parent = parent_process()
    if parent is None:
        return
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, _note)
    for one in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_DFL)
    Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _note(_number: int, _frame: FrameType | None) -> None:
    _state.signalled = monotonic()


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os.killpg(0, signal.SIGKILL)


def ask_to_end(worker: BaseProcess) -> None:
    """Make `stopping` true in the worker."""
    assert worker.pid is not None  # it was started
    with suppress(ProcessLookupError):
        os.kill(worker.pid, signal.SIGINT)


def end_at_once(worker: BaseProcess) -> None:
    """End the worker, if it runs, and what it has started."""
    assert worker.pid is not None  # it was started
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.kill()  # it may have no group of its own yet
