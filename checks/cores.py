"""Work side by side: on all cores of this machine or, inside `placed`, elsewhere."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sized
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from multiprocessing import active_children
from typing import Protocol, TypeVar

from checks.ending import (
    EndedBySignalError,
    WorkerDiedError,
    ask_to_end,
    begin_as_worker,
    deferred,
    end_at_once,
    refuse_to_go_on,
)

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

_AHEAD = 2  # items for each core that are not done; the next is at hand when one is
_LOOK_SECONDS = 0.1  # how often the main process looks whether a signal came
_GRACE_SECONDS = 1.0  # for workers that are asked to end


def nothing() -> None:
    """Cores need no preparation."""


class Place(Protocol):
    """Where pieces of work are done, each in a process of its own kind."""

    @property
    def size(self) -> int:
        """How many pieces are done at a time."""

    def lost(self) -> tuple[type[BaseException], ...]:
        """What a piece of work raises that is lost with the process that did it."""

    def pool(self, most: int) -> AbstractContextManager[Executor]:
        """The processes, no more than `most` where they are begun for this work."""

    def each(self, pool: Executor, most: int, work: Callable[[], None]) -> list[Future[None]]:
        """The work once in each process of the pool of `most`."""


def on_all_cores(
    work: Callable[[Item], Outcome],
    items: Iterable[Item],
    prepare: Callable[[], None] = nothing,
    clear: Callable[[], None] = nothing,
) -> Iterator[Outcome]:
    """The outcome for each item, in their order; see `as_they_come`.

    A long item keeps its core only: others go on, and their outcomes wait for their turn.

    Raises:
        EndedBySignalError: a signal ends the work; all outcomes up to the first that is missing
            were given before.
        WorkerDiedError: a worker process ended; the same.
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
    items: Iterable[Item],
    prepare: Callable[[], None] = nothing,
    clear: Callable[[], None] = nothing,
) -> Iterator[tuple[int, Outcome]]:
    """The outcome for each item as soon as it is there, with the item's number.

    `work` and what it takes and gives must pickle. `prepare` is done once for each core, side by
    side, before the first item is taken; `clear` likewise at the end, where processes outlive the
    work. Items are taken as they are needed, so they may have no
    end. When no more outcomes are asked for, the work ends.

    Raises:
        EndedBySignalError: a signal ends the work. The workers were asked to end theirs
            (`checks.ending.stopping`), and outcomes that they gave within a second come before.
        WorkerDiedError: a worker process ended.
    """
    place = _state.place
    most = min(place.size, len(items)) if isinstance(items, Sized) else place.size
    if most <= 1 and place is _THIS_MACHINE:
        prepare()
        for number, item in enumerate(items):
            yield number, _piece(work, item)
        return
    begun: dict[Future[Outcome], int] = {}
    with deferred(), place.pool(most) as pool:
        try:
            preparing = {one: number for number, one in enumerate(place.each(pool, most, prepare))}
            while preparing:
                list(_done(preparing))
            for number, item in enumerate(items):
                begun[pool.submit(_piece, work, item)] = number
                while len(begun) >= _AHEAD * most:
                    yield from _done(begun)
            while begun:
                yield from _done(begun)
        except EndedBySignalError:
            for one in active_children():
                ask_to_end(one)
            done = wait(begun, timeout=_GRACE_SECONDS).done
            yield from _in_order([one for one in done if one.exception() is None], begun)
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
    refuse_to_go_on()
    return work(item)


def _done(begun: dict[Future[Outcome], int]) -> Iterator[tuple[int, Outcome]]:
    """The outcomes that came within a moment, and no longer are `begun`.

    Raises:
        EndedBySignalError: a signal came.
    """
    refuse_to_go_on()
    done = wait(begun, timeout=_LOOK_SECONDS, return_when=FIRST_COMPLETED).done
    yield from _in_order(done, begun)


def _in_order(
    done: Collection[Future[Outcome]], begun: dict[Future[Outcome], int]
) -> Iterator[tuple[int, Outcome]]:
    for one in sorted(done, key=begun.__getitem__):
        yield begun.pop(one), one.result()


def cores_here() -> int:
    """How many cores this machine has."""
    return os.cpu_count() or 1


# --- where ----------------------------------------------------------------------------------------


class _ThisMachine:
    """Worker processes on all cores, begun for the work and gone at its end."""

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
    """True if pieces of work are done on other machines, each with a clock of its own."""
    return _state.place is not _THIS_MACHINE


@contextmanager
def placed(place: Place) -> Iterator[None]:
    """While it lasts, pieces of work are done there."""
    before, _state.place = _state.place, place
    try:
        yield
    finally:
        _state.place = before


@contextmanager
def _workers(count: int) -> Iterator[Executor]:
    """So many worker processes, which are gone at the end, at once if the block ends early."""
    others = set(active_children())
    pool = ProcessPoolExecutor(count, initializer=begin_as_worker)
    for _ in range(count):
        pool.submit(nothing)  # so that all are begun
    workers = set(active_children()) - others
    try:
        yield pool
    except BaseException:
        for one in workers:  # of one that was killed what it has started may be left
            end_at_once(one)
        raise
    finally:
        pool.shutdown()


_THIS_MACHINE: Place = _ThisMachine()


class _State:
    """Of this process."""

    place = _THIS_MACHINE


_state = _State()
