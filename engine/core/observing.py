"""What pool, queue and names of a scheduler are around a step, in the words of the rules.

An engine keeps arrays and tables that change; rules, traces and comparisons speak of states that do
not. An observer makes them and shares with its last state whatever has not changed since. A
scheduler that is not observed pays nothing.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Set
from itertools import islice, takewhile
from math import inf
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

from engine.core.blocks import BlockManager, Changes
from engine.core.requests import RequestT, WaitingQueue
from engine.core.scheduler import Ends, Outcome
from engine.core.state import LeftNames
from spec.core.blocks import BlockPool
from spec.core.requests import BlockKey
from spec.core.sharing import DerivedMap, DerivedSet, FrozenMap, SharedMap

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")
RowT = TypeVar("RowT")
StateT = TypeVar("StateT", covariant=True)


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


def ended_in(outcome: Outcome, ends: Ends) -> tuple[str, ...]:
    """The requests that sampled the end of sequence, where the environment decided so."""
    return tuple(dict.fromkeys(filter(ends.__contains__, outcome.sampled))) if ends else ()


class PoolObserver:
    """Watches one block manager, which notes for it what has changed."""

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        self._changes = blocks.changes = Changes({*blocks.numbers}, {*blocks.cached})
        self._references = _Shown[int, int]()
        self._keys = _Shown[int, BlockKey]()
        self._cached = _Shown[BlockKey, tuple[int, ...]]()
        self._pool = BlockPool(size=len(blocks.numbers), free=())

    def pool(self) -> BlockPool:
        """The pool as it is now; maps in which nothing changed are those of the last one."""
        changed = self._changes
        if changed.blocks:
            now = self._blocks
            # Also contents that a block had before and has again: it stands behind others now.
            blocks = {key: tuple(now.cached.get(key, ())) or None for key in changed.contents}
            holders = {block: now.references[block] or None for block in changed.blocks}
            keys = {block: now.keys[block] for block in changed.blocks}
            self._pool = BlockPool(
                size=self._pool.size,
                free=now.free.as_order(),
                references=self._references.with_changes(holders),
                keys=self._keys.with_changes(keys),
                cached=self._cached.with_changes(blocks),
            )
            changed.clear()
        return self._pool


class _Shown(Generic[KeyT, ValueT]):
    """A map as it is shown, and what is in it: to see it, the map need not be worked out."""

    def __init__(self) -> None:
        self._map: SharedMap[KeyT, ValueT] = FrozenMap()
        self._items: dict[KeyT, ValueT] = {}

    def with_changes(self, changes: Mapping[KeyT, ValueT | None]) -> SharedMap[KeyT, ValueT]:
        """The map with `changes` over it, None for what it lacks; the last if nothing differs."""
        items = self._items
        differing = {key: value for key, value in changes.items() if items.get(key) != value}
        for key, value in differing.items():
            if value is None:
                del items[key]
            else:
                items[key] = value
        if differing:
            self._map = DerivedMap.of(self._map, differing)
        return self._map


class QueueObserver(Generic[RequestT, RowT]):
    """Watches one waiting queue, which notes for it what was taken out."""

    def __init__(self, queue: WaitingQueue[RequestT], row_of: Callable[[RequestT], RowT]) -> None:
        """`row_of`: a waiting request as the rules see it."""
        self._queue = queue
        self._row_of = row_of
        self._removed: list[RequestT] = []
        queue.removed = self._removed
        self._waiting: list[RequestT] = []
        self._rows: tuple[RowT, ...] = ()
        self._changes = -1

    def rows(self) -> tuple[RowT, ...]:
        """The waiting requests; known ones are not described anew.

        Usually a few were taken out, others came behind, and the rest has not changed.
        """
        if self._changes != self._queue.changes:
            self._look()
            self._removed.clear()
            self._changes = self._queue.changes
        return self._rows

    def _look(self) -> None:
        last = self._waiting[-1].order if self._waiting else -inf
        newcomers = [*takewhile(lambda one: one.order > last, reversed(self._queue))][::-1]
        for one in self._removed:
            self._take_out(one)
        self._waiting += newcomers
        self._rows += tuple(map(self._row_of, newcomers))
        is_first_known = [*islice(self._queue, 1)] == self._waiting[:1]
        if not is_first_known or len(self._waiting) != len(self._queue):
            self._look_at_all()

    def _take_out(self, request: RequestT) -> None:
        place = bisect_left(self._waiting, request.order, key=attrgetter("order"))
        if self._waiting[place : place + 1] == [request]:  # else it came and went between two looks
            del self._waiting[place]
            self._rows = self._rows[:place] + self._rows[place + 1 :]

    def _look_at_all(self) -> None:
        known = dict(zip(self._waiting, self._rows, strict=False))
        self._waiting = [*self._queue]
        self._rows = tuple(known.get(one) or self._row_of(one) for one in self._waiting)


class RankedObserver(QueueObserver[RequestT, RowT]):
    """Watches a waiting queue in which newcomers stand anywhere."""

    def _look(self) -> None:
        self._look_at_all()


def with_new_names(last: Set[str], names: LeftNames) -> Set[str]:
    """All names so far, those of before included that the scheduler has forgotten since."""
    new = [*takewhile(lambda name: name not in last, reversed(names))]
    return DerivedSet.of(last, new) if new else last
