"""Parallel work: on all cores of this machine or, inside `placed`, elsewhere."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sized
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import active_children
from multiprocessing.process import BaseProcess
from typing import Protocol, TypeVar

from checks.ending import (
    EndedBySignalError,
    WorkerDiedError,
    ask_to_end,
    begin_as_worker,
    deferred,
    end_at_once,
    raise_if_signalled,
)

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

_AHEAD = 2  # submitted items for each core, so that no core waits for its next item
_LOOK_SECONDS = 0.1  # between two checks of the main process for a signal
_GRACE_SECONDS = 1.0  # for workers to end after they were asked


def nothing() -> None:
    """Do nothing: no preparation is needed."""


class Place(Protocol):
    """A set of processes that do pieces of work: this machine's or a cluster's."""

    @property
    def size(self) -> int:
        """The number of pieces done at the same time."""

    def lost(self) -> tuple[type[BaseException], ...]:
        """The exceptions raised for a piece of work whose process died."""

    def pool(self, most: int) -> AbstractContextManager[Executor]:
        """The processes; if they are started for this work, at most `most`."""

    def each(self, pool: Executor, most: int, work: Callable[[], None]) -> list[Future[None]]:
        """Submit the work once for each process of the pool of `most`."""


def on_all_cores(
    work: Callable[[Item], Outcome],
    items: Iterable[Item | None],
    prepare: Callable[[], None] = nothing,
    clear: Callable[[], None] = nothing,
) -> Iterator[Outcome]:
    """The outcome for each item, in their order; see `as_they_come`.

    A long item occupies its own core only: other items continue, and their outcomes wait.

    Raises:
        EndedBySignalError: a signal ended the work; all outcomes before the first missing one were
            yielded.
        WorkerDiedError: a worker process died; likewise.
    """
    early: dict[int, Outcome] = {}
    due = 0
    for number, outcome in as_they_come(work, items, prepare, clear):
        early[number] = outcome
        while due in early:
            yield early.pop(due)
            due += 1


def as_they_come(
    work: Callable[[Item], Outcome],
    items: Iterable[Item | None],
    prepare: Callable[[], None] = nothing,
    clear: Callable[[], None] = nothing,
) -> Iterator[tuple[int, Outcome]]:
    """The number and the outcome of each item, as soon as it is done.

    `work`, its items and its outcomes must pickle. `prepare` runs once on each core, in parallel,
    before the first item; `clear` likewise at the end, if the processes outlive the work. Items are
    taken as needed, so that they may be infinite; None says that the next item waits for an
    outcome. The work ends when the caller stops iterating.

    Raises:
        EndedBySignalError: a signal ended the work. The workers were asked to end
            (`checks.ending.stopping`), and outcomes that came within a second were yielded first.
        WorkerDiedError: a worker process died.
    """
    place = _state.place
    most = min(place.size, len(items)) if isinstance(items, Sized) else place.size
    if most <= 1 and place is _THIS_MACHINE:
        prepare()
        for number, piece in enumerate(item for item in items if item is not None):
            yield number, _piece(work, piece)
        return
    begun: dict[Future[Outcome], int] = {}
    with deferred(), place.pool(most) as pool:
        try:
            futures = place.each(pool, most, prepare)
            preparing = {future: number for number, future in enumerate(futures)}
            while preparing:
                list(_done(preparing))
            number = 0
            for item in items:
                if item is None:
                    yield from _done(begun)
                    continue
                begun[pool.submit(_piece, work, item)] = number
                number += 1
                while len(begun) >= _AHEAD * most:
                    yield from _done(begun)
            while begun:
                yield from _done(begun)
        except EndedBySignalError:
            for worker in active_children():
                ask_to_end(worker)
            done = wait(begun, timeout=_GRACE_SECONDS).done
            yield from _in_order([future for future in done if future.exception() is None], begun)
            raise
        except place.lost():
            raise WorkerDiedError(
                "a worker process was killed, its piece of work is lost"
            ) from None
        finally:
            if place is not _THIS_MACHINE:
                for waiting in begun:
                    waiting.cancel()
                wait(place.each(pool, most, clear), timeout=_GRACE_SECONDS)


def _piece(work: Callable[[Item], Outcome], item: Item) -> Outcome:
    raise_if_signalled()
    return work(item)


def _done(begun: dict[Future[Outcome], int]) -> Iterator[tuple[int, Outcome]]:
    """The outcomes that came within a moment; their items are removed from `begun`.

    Raises:
        EndedBySignalError: a signal came.
    """
    raise_if_signalled()
    done = wait(begun, timeout=_LOOK_SECONDS, return_when=FIRST_COMPLETED).done
    yield from _in_order(done, begun)


def _in_order(
    done: Collection[Future[Outcome]], begun: dict[Future[Outcome], int]
) -> Iterator[tuple[int, Outcome]]:
    for future in sorted(done, key=begun.__getitem__):
        yield begun.pop(future), future.result()


@contextmanager
def beside() -> Iterator[Executor]:
    """A process for work beside this one's; it ends with the block, whatever it does."""
    pool, workers = _started(1)
    try:
        yield pool
    finally:
        for worker in workers:
            end_at_once(worker)
        pool.shutdown()


def cores_here() -> int:
    """The number of cores of this machine."""
    return os.cpu_count() or 1


# --- places ---------------------------------------------------------------------------------------


class _ThisMachine:
    """Worker processes on all cores, started for the work and ended with it."""

    @property
    def size(self) -> int:
        return cores_here()

    def lost(self) -> tuple[type[BaseException], ...]:
        return (BrokenProcessPool,)

    def pool(self, most: int) -> AbstractContextManager[Executor]:
        return _workers(most)

    def each(self, pool: Executor, most: int, work: Callable[[], None]) -> list[Future[None]]:
        return [pool.submit(work) for _ in range(most)]


def is_elsewhere() -> bool:
    """True if the work is done on other machines, whose clocks differ."""
    return _state.place is not _THIS_MACHINE


@contextmanager
def placed(place: Place) -> Iterator[None]:
    """Within the block, pieces of work are done at this place."""
    before, _state.place = _state.place, place
    try:
        yield
    finally:
        _state.place = before


@contextmanager
def _workers(count: int) -> Iterator[Executor]:
    """A pool of `count` worker processes; they end with the block, at once if it raises."""
    pool, workers = _started(count)
    try:
        yield pool
    except BaseException:
        for worker in workers:  # a killed worker may have left processes
            end_at_once(worker)
        raise
    finally:
        pool.shutdown()


def _started(count: int) -> tuple[Executor, set[BaseProcess]]:
    """A pool of `count` worker processes, and these."""
    others = set(active_children())
    pool = ProcessPoolExecutor(count, initializer=begin_as_worker)
    for _ in range(count):
        pool.submit(nothing)  # so that all workers start
    return pool, {*active_children()} - others


_THIS_MACHINE: Place = _ThisMachine()


class _State:
    """The state of this process."""

    place = _THIS_MACHINE


_state = _State()
