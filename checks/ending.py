"""Early ends of work: a signal, the death of a worker process, lack of memory.

A signal ends the work at once, or where the work checks for it (`deferred`). The results so far are
kept and reported; `ended` gives the cause, from which the command's exit code follows.
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
    """A signal ended the work; the text is its name."""


class WorkerDiedError(RuntimeError):
    """A worker process died, and its piece of work is lost."""


class OutOfTimeError(RuntimeError):
    """The time limit was reached within a piece of work."""


EARLY_ENDS = (KeyboardInterrupt, OutOfTimeError, WorkerDiedError, MemoryError)
"""Exceptions that end work and keep the results so far."""


class _State:
    """The state of this process.

    `ended`: the cause of an early end. `signalled`: the time of the first signal. `deferring`: the
    number of open `deferred` blocks.
    """

    def __init__(self) -> None:
        self.ended: BaseException | None = None
        self.signalled: float | None = None
        self.number: int | None = None  # of the signal, until it is sent again
        self.deferring = 0


_state = _State()


def ended() -> BaseException | None:
    """The exception that ended the work early; None if none did."""
    return _state.ended


def stopping() -> bool:
    """True after a signal has asked this process to end its work."""
    return _state.signalled is not None


@contextmanager
def keeping_results() -> Iterator[None]:
    """A block whose early end is noted in `ended` instead of raised."""
    try:
        yield
    except EARLY_ENDS as end:
        _state.ended = _state.ended or end


@contextmanager
def deferred() -> Iterator[None]:
    """Within the block the first signal only makes `stopping` true; a second one ends the block."""
    _state.deferring += 1
    try:
        yield
    finally:
        _state.deferring -= 1


@contextmanager
def undivided() -> Iterator[None]:
    """A block that a signal does not interrupt: the work ends after the block.

    Raises:
        EndedBySignalError: a signal came, and no `deferred` block is around this one.
    """
    with deferred():
        yield
    if not _state.deferring:
        raise_if_signalled()


def raise_if_signalled() -> None:
    """End the work if a signal has come.

    Raises:
        EndedBySignalError: a signal has come.
    """
    if stopping():
        raise _state.ended or EndedBySignalError("a signal")


# --- signals --------------------------------------------------------------------------------------


@contextmanager
def signals_end_the_work() -> Iterator[None]:
    """Within the block SIGINT, SIGTERM and SIGHUP end the work, unless they are ignored already."""
    _state.ended = _state.signalled = None
    heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, _end) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _state.ended = _state.signalled = None


@contextmanager
def signals_resent() -> Iterator[None]:
    """After the block, a signal that ended work in it is sent to this process again."""
    _state.number = None
    try:
        yield
    finally:
        number, _state.number = _state.number, None
        if number is not None:
            os.kill(os.getpid(), number)


def ignore_signals() -> None:
    """Ignore SIGINT, SIGTERM and SIGHUP from now on."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


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
    """Set up a worker process: the main process decides when it and its children end.

    The worker gets its own process group. SIGINT, which only the main process sends, makes
    `stopping` true. When the main process dies, the group is killed, drivers included.
    """
    parent = parent_process()
    if parent is None:
        return
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, _note)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    Thread(target=_end_group, args=(parent.sentinel,), daemon=True).start()


def _note(_number: int, _frame: FrameType | None) -> None:
    _state.signalled = monotonic()


def _end_group(sentinel: int) -> None:
    connection.wait([sentinel])
    os.killpg(0, signal.SIGKILL)


def ask_to_end(worker: BaseProcess) -> None:
    """Make `stopping` true in the worker."""
    assert worker.pid is not None  # it was started
    with suppress(ProcessLookupError):
        os.kill(worker.pid, signal.SIGINT)


def end_at_once(worker: BaseProcess) -> None:
    """Kill the worker and all processes that it started."""
    assert worker.pid is not None  # it was started
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.kill()  # it may not have its own group yet
