"""Observers: pool, queue and request ids of a scheduler as records of the specification.

An engine keeps arrays and tables that change; rules, traces and comparisons speak of states that do
not. An observer makes them and shares unchanged parts with its last state. A
scheduler that is not observed pays nothing.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence, Set
from itertools import groupby, takewhile
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

from engine.core.blocks import BlockManager, Changes
from engine.core.requests import RequestT, WaitingQueue
from engine.core.scheduler import Ends, Outcome
from engine.core.sharing import DerivedMap, DerivedSet, SharedOrder
from engine.core.state import LeftNames
from spec.core.blocks import BlockPool

RowT = TypeVar("RowT")
StateT = TypeVar("StateT", covariant=True)

_RUN = 256  # places of the queue that are shown at once


class StateObserver(Protocol[StateT]):
    """Watches one scheduler; a scheduler has one observer at a time, the last."""

    def state(self) -> StateT:
        """The scheduler at rest; the same object as last time if nothing has changed."""


ObserverT = TypeVar("ObserverT", bound=StateObserver[Any])


class StepObserver(Generic[ObserverT]):
    """Watches one scheduler step by step: `begin` before each step, the policy's `end` after it."""

    def __init__(self, observer: ObserverT) -> None:
        """`observer`: of the scheduler."""
        self._observer = observer
        self._before: Any = observer.state()

    def begin(self) -> Any:
        """A step begins, in the state that this gives: what arrived or went away has done so."""
        self._before = self._observer.state()
        return self._before


def ended_requests(outcome: Outcome, ends: Ends) -> tuple[str, ...]:
    """The requests that sampled the end of sequence, where the environment decided so."""
    return tuple(dict.fromkeys(filter(ends.__contains__, outcome.sampled))) if ends else ()


class PoolObserver:
    """Watches one block manager, which notes for it what has changed."""

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        self._changes = blocks.changes = Changes({*blocks.numbers}, {*blocks.cached})
        nothing = DerivedMap[Any, Any].of({}, {})
        self._pool = BlockPool(len(blocks.numbers), (), nothing, nothing, nothing)

    @property
    def has_changed(self) -> bool:
        """True if anything did since the pool was last looked at."""
        return bool(self._changes.blocks)

    def pool(self) -> BlockPool:
        """The pool as it is now; maps in which nothing changed are those of the last one."""
        changed, last = self._changes, self._pool
        if changed.blocks:
            now = self._blocks
            holders = {block: now.references[block] or None for block in changed.blocks}
            keys, cached = last.keys, last.cached
            if changed.contents:
                keys = DerivedMap.of(keys, {block: now.keys[block] for block in changed.blocks})
                # Also contents that a block had before and has again: it stands behind others now.
                holding = {key: now.cached.get(key) for key in changed.contents}
                cached = DerivedMap.of(cached, holding)
            references = DerivedMap.of(last.references, holders)
            self._pool = BlockPool(last.size, now.free.as_order(), references, keys, cached)
            changed.clear()
        return self._pool


class QueueObserver(Generic[RequestT, RowT]):
    """Watches one waiting queue, which notes for it what was taken out."""

    def __init__(self, queue: WaitingQueue[RequestT], row_of: Callable[[RequestT], RowT]) -> None:
        """`row_of`: a waiting request as the rules see it."""
        self._queue = queue
        self._row_of = row_of
        self._removed: list[RequestT] = []
        queue.removed = self._removed
        # Requests whose places in the queue are near each other, and their rows.
        self._runs: dict[int, list[RequestT]] = {}
        self._shown: dict[int, tuple[RowT, ...]] = {}
        self._rows: Sequence[RowT] = ()
        self._changes = -1

    def rows(self) -> Sequence[RowT]:
        """The waiting requests; unchanged requests keep their record."""
        if self._changes != self._queue.changes:
            self._look()
            self._rows = SharedOrder(tuple(self._shown[number] for number in sorted(self._shown)))
            self._removed.clear()
            self._changes = self._queue.changes
        return self._rows

    def _look(self) -> None:
        """Usually a few were taken out, others came at an end, and the rest has not changed."""
        were_known = [self._take(request) for request in self._removed]
        for request in self._newcomers():
            self._insert(request)
        if not all(were_known) or sum(map(len, self._runs.values())) != len(self._queue):
            self._look_at_all()  # some came and went, or went and came, between two looks

    def _newcomers(self) -> list[RequestT]:
        """Those before and those behind all that are known."""
        if not self._runs:
            return [*self._queue]
        first, last = self._runs[min(self._runs)][0].order, self._runs[max(self._runs)][-1].order
        return [
            *takewhile(lambda request: request.order < first, self._queue),
            *takewhile(lambda request: request.order > last, reversed(self._queue)),
        ]

    def _insert(self, request: RequestT) -> None:
        number = self._number(request)
        run, rows = self._runs.setdefault(number, []), self._shown.get(number, ())
        place = bisect_left(run, request.order, key=attrgetter("order"))
        run.insert(place, request)
        self._shown[number] = (*rows[:place], self._row_of(request), *rows[place:])

    def _take(self, request: RequestT) -> bool:
        """False if it was not seen, or has another place by now."""
        number = self._number(request)
        run, rows = self._runs.get(number, []), self._shown.get(number, ())
        if request not in run:
            return False
        place = run.index(request)
        del run[place]
        self._shown[number] = rows[:place] + rows[place + 1 :]
        if not run:
            del self._runs[number], self._shown[number]
        return True

    def _look_at_all(self) -> None:
        known = dict[RequestT, RowT]()
        for number, run in self._runs.items():
            known.update(zip(run, self._shown[number], strict=True))
        for request in self._removed:
            known.pop(request, None)
        self._runs.clear()
        self._shown.clear()
        for number, near in groupby(self._queue, key=self._number):
            self._runs[number] = [*near]
            rows = (known.get(request) or self._row_of(request) for request in self._runs[number])
            self._shown[number] = tuple(rows)

    def _number(self, request: RequestT) -> int:
        return request.order // _RUN


class RankedObserver(QueueObserver[RequestT, RowT]):
    """Watches a waiting queue in which newcomers stand anywhere."""

    def _look(self) -> None:
        self._look_at_all()

    def _number(self, _request: RequestT) -> int:
        return 0


def with_new_names(last: Set[str], names: LeftNames) -> Set[str]:
    """All names so far, those of before included that the scheduler has forgotten since."""
    newest = next(reversed(names), None)
    if newest is None or newest in last:  # the usual case
        return last
    return DerivedSet.of(last, takewhile(lambda name: name not in last, reversed(names)))
