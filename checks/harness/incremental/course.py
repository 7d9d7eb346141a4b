"""Successive states, and the part of each to which something happened between them.

States share their parts: a request or a map to which nothing happened is the same object before and
after. A rule that held before can be broken only by the rest. The small states made here consist of
that rest, and the predicate that judges a whole state judges them.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, TypeAlias, TypeVar

from attrs import evolve, frozen

from checks.harness.incremental.orders import (
    common_ends,
    common_start,
    differing,
    items_of,
    shared_runs,
)
from engine.core.sharing import DerivedMap, SharedOrder
from spec.core.blocks import BlockPool
from spec.core.judging import holders_of, ids
from spec.core.records import Event

Key = TypeVar("Key")
State: TypeAlias = Any  # of any policy
Row: TypeAlias = Any  # a request of any policy
States: TypeAlias = tuple[State, ...]


@frozen
class Places:
    """The fields of a policy's records that hold states and requests.

    `states`: of a step, in order. `queues`: of a state besides `waiting`, tuples of requests or one
    request that may be absent. `batch`: of a step, where it has such a field. `refilled`: of a
    request as it was and as it is, and a block size in tokens, the places in its table from which
    on its tokens fill it otherwise. `head`: requests in front of the queue whose places rules count
    under a configuration.
    """

    queues: tuple[str, ...]
    refilled: Callable[[Row, Row, int], list[int]]
    states: tuple[str, ...] = ("before", "after")
    batch: str | None = None
    head: Callable[[Any], int] = lambda _config: 0


@frozen(slots=False, eq=False)
class Course:
    """The states before, in and after a step, or those around a change between two steps.

    `events`: of the step.
    """

    config: Any
    places: Places
    states: States
    events: Sequence[Event] = ()

    # --- the waiting queue ------------------------------------------------------------------------

    @cached_property
    def waiting(self) -> tuple[Sequence[Row], ...]:
        """The queue of each state, without all but one of the successive requests that stay in it.

        One stays, so that a request before or behind them is seen to be there. All stay if a
        request that is new or has left may have the id of another.
        """
        queues = [state.waiting for state in self.states]
        changes = [pair for pair in pairwise(queues) if pair[0] is not pair[1]]
        ends = [common_ends(before, after) for before, after in changes]
        first = min((start for start, _ in ends), default=len(queues[0]))
        last = min((end for _, end in ends), default=0)
        head = self.places.head(self.config)
        start = 0 if head else max(first - 1, 0)
        end = max(min(last - 1, *(len(queue) - head for queue in queues)), 0)
        short = tuple(tuple(queue[start : len(queue) - end]) for queue in queues)
        left_out = chain(queues[0][:start], queues[0][len(queues[0]) - end :])
        return short if self._are_unique(short, left_out) else tuple(queues)

    def _are_unique(self, queues: Sequence[Sequence[Row]], left_out: Iterable[Row]) -> bool:
        """True if each id is in one place, and none that is new is one of those left out."""
        places = [
            [*ids(state.admitted), *(row.id for row in queue)]
            for state, queue in zip(self.states, queues, strict=True)
        ]
        new = {*self._left("finished"), *self._left("aborted"), *chain.from_iterable(places[1:])}
        new.difference_update(places[0])
        are_unique = all(len({*each}) == len(each) for each in places)
        return are_unique and not (new and any(row.id in new for row in left_out))

    def _left(self, name: str) -> Set[str]:
        """The requests that have finished since the first state, or were aborted."""
        left: Set[str] = getattr(self.states[-1], name) - getattr(self.states[0], name)
        return left

    def _rows(self, place: int) -> Iterable[Row]:
        """The requests of a state, without those that wait untouched."""
        return chain(self.waiting[place], self.states[place].admitted)

    @cached_property
    def with_short_queue(self) -> States:
        """The states without requests that wait untouched."""
        pairs = zip(self.states, self.waiting, strict=True)
        return tuple(evolve(state, waiting=queue) for state, queue in pairs)

    @cached_property
    def with_moved_places(self) -> States | None:
        """The same; in the last state only those have left that did so since, or are present.

        None if the ids present are those of the first state, each in one place, and none has left.
        """
        rows, finished, aborted = [*self._rows(-1)], self._left("finished"), self._left("aborted")
        known, now = ids(self._rows(0)), ids(rows)
        if known == now and len(rows) == len(now) and not (finished or aborted):
            return None
        *others, last = self.with_short_queue
        present = now | finished | aborted
        finished |= {id_ for id_ in present if id_ in last.finished}
        aborted |= {id_ for id_ in present if id_ in last.aborted}
        return (*others, evolve(last, finished=finished, aborted=aborted))

    # --- blocks -----------------------------------------------------------------------------------

    @cached_property
    def _moved(self) -> tuple[set[str], set[int]]:
        """The requests whose table or filling changed, and the blocks where it did."""
        takers = [event for event in self.events if isinstance(event.after, tuple)]
        moved, blocks = ids(takers), {block for event in takers for block in event.after}
        refilled, size = self.places.refilled, self.config.block_size
        was = {row.id: row for row in self._rows(0)}
        for row in self._rows(-1):
            before = was.pop(row.id, None)
            if before is None:
                moved.add(row.id)
                blocks.update(row.blocks)
            elif before is not row:
                places = refilled(before, row, size)
                if before.blocks is not row.blocks and before.blocks != row.blocks:
                    places.append(common_start(before.blocks, row.blocks))
                if places:
                    moved.add(row.id)
                    blocks.update(row.blocks[min(places) :], before.blocks[min(places) :])
        for row in was.values():
            moved.add(row.id)
            blocks.update(row.blocks)
        return moved, blocks

    @cached_property
    def _blocks(self) -> set[int]:
        """The blocks to which something happened: holders, content, place in the free list."""
        before, after = self.states[0].pool, self.states[-1].pool
        blocks = {*self._moved[1]}
        if before is not after:
            blocks.update(*_free_moves(before.free, after.free))
            blocks |= _changed_keys(before.references, after.references)
            blocks |= _changed_keys(before.keys, after.keys)
            contents = _changed_keys(before.cached, after.cached)
            blocks.update(
                block
                for pool in (before, after)
                for key in contents
                for block in pool.cached.get(key, ())
            )
        return blocks

    @cached_property
    def _holders(self) -> set[str]:
        """The requests that hold one of these blocks, where others do than those that moved."""
        held = holders_of(row for row in self._rows(0) if row.id in self._moved[0])
        references = self.states[0].pool.references
        if all(references.get(block, 0) <= held[block] for block in self._blocks):
            return set()
        rows = (row for state in self.states for row in (*state.waiting, *state.admitted))
        return {row.id for row in rows if not self._blocks.isdisjoint(row.blocks)}

    @cached_property
    def moved_rows(self) -> set[str]:
        """The requests that moved, and those that hold a touched block."""
        return self._moved[0] | self._holders

    @cached_property
    def with_moved_blocks(self) -> States | None:
        """The states with these requests and touched blocks; None if there are none of either.

        In a step of three states the pool of the second is whole.
        """
        pools = [state.pool for state in self.states]
        is_as_large = pools[0].size == pools[-1].size
        if is_as_large and not (self.moved_rows or self._blocks):
            return None
        pools[0], pools[-1] = self._pools
        return tuple(
            evolve(
                state,
                pool=pool,
                waiting=_only(state.waiting if self._holders else waiting, self.moved_rows),
                **{
                    queue: _only(getattr(state, queue), self.moved_rows)
                    for queue in self.places.queues
                },
            )
            for state, pool, waiting in zip(self.states, pools, self.waiting, strict=True)
        )

    @cached_property
    def with_known_contents(self) -> States | None:
        """The same, but what any block and any content has can be looked up in the pools."""
        if self.with_moved_blocks is None:
            return None
        first, *between, last = self.with_moved_blocks
        return (
            evolve(first, pool=_with_known_contents(first.pool, self.states[0].pool)),
            *between,
            evolve(last, pool=_with_known_contents(last.pool, self.states[-1].pool)),
        )

    @cached_property
    def with_moved_holders(self) -> States | None:
        """The same; the tables of the last state have only touched blocks."""
        if self.with_moved_blocks is None:
            return None
        *others, last = self.with_moved_blocks
        queues = {
            queue: _with_blocks(getattr(last, queue), self._blocks)
            for queue in ("waiting", *self.places.queues)
        }
        return (*others, evolve(last, **queues))

    @cached_property
    def _pools(self) -> list[BlockPool]:
        """The first and the last pool, of touched blocks and of those with the same contents.

        The number of holders is left out of the first.
        """
        pools = [self.states[0].pool, self.states[-1].pool]
        keys = [_part(pool.keys, self._blocks) for pool in pools]
        contents = {*keys[0].values(), *keys[1].values()}
        contents |= _changed_keys(pools[0].cached, pools[1].cached)
        cached = [_part(pool.cached, contents) for pool in pools]
        alike = {block for each in cached for blocks in each.values() for block in blocks}
        for pool, known in zip(pools, keys, strict=True):
            known |= _part(pool.keys, alike - self._blocks)
        events = [event for event in self.events if event.transition == "prefix_hit"]
        hits = {block for event in events for block in event.after}
        free = _short_free_lists(pools[0].free, pools[1].free, hits)
        references = _part(pools[1].references, self._blocks)
        left_out = len(pools[1].free) - len(free[1]) + len(pools[1].references) - len(references)
        size = pools[1].size - left_out
        if size != len(self._blocks.union(free[1])):
            size = -1  # some blocks are lost, or twice in the pool
        return [
            BlockPool(pools[0].size, free[0], {}, keys[0], cached[0]),
            BlockPool(size, free[1], references, keys[1], cached[1]),
        ]


# --- parts of states ------------------------------------------------------------------------------


def _only(queue: Any, wanted: Container[str]) -> Any:
    """The requests of a queue with these ids; a place of one request has it or none."""
    if isinstance(queue, Sequence):
        return tuple(row for row in queue if row.id in wanted)
    return queue if queue is not None and queue.id in wanted else None


def _with_blocks(queue: Any, wanted: Container[int]) -> Any:
    """The requests of a queue with only these blocks in their tables."""
    if isinstance(queue, tuple):
        return tuple(_with_blocks(row, wanted) for row in queue)
    if queue is None:
        return None
    return evolve(queue, blocks=tuple(block for block in queue.blocks if block in wanted))


def _part(whole: Mapping[Key, Any], keys: Iterable[Key]) -> dict[Key, Any]:
    return {key: value for key in keys if (value := whole.get(key)) is not None}


def _with_known_contents(small: BlockPool, pool: BlockPool) -> BlockPool:
    """The small pool, with the contents of all blocks of the other at hand."""
    return evolve(
        small, keys=_Known(small.keys, pool.keys), cached=_Known(small.cached, pool.cached)
    )


class _Known(dict[Key, Any]):
    """A part of a map: what goes through it sees some keys, what looks a key up finds any."""

    def __init__(self, part: Mapping[Key, Any], whole: Mapping[Key, Any]) -> None:
        super().__init__(part)
        self._whole = whole

    def __missing__(self, key: Key) -> Any:
        return self._whole[key]

    def get(self, key: Key, default: Any = None) -> Any:
        """As of the whole map."""
        return self._whole.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._whole


def _changed_keys(before: Mapping[Key, Any], after: Mapping[Key, Any]) -> set[Key]:
    """The keys under which two maps differ, and perhaps others."""
    keys: set[Key] = set()
    known: Mapping[Key, Any] | None = after
    while known is not before:
        if not isinstance(known, DerivedMap):
            return {key for key, _ in before.items() ^ after.items()}
        keys.update(known.changed)
        known = known.origin
    return keys


def _free_moves(before: Sequence[int], after: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    """The blocks of each free list, without those that stand in the other in the same way."""
    if not (isinstance(before, SharedOrder) and isinstance(after, SharedOrder)):
        return differing(before, after)
    start, begin, count = shared_runs(before, after)
    left = before.runs[:start] + before.runs[start + count :]
    entered = after.runs[:begin] + after.runs[begin + count :]
    if len(left) != len(entered):
        return items_of(left), items_of(entered)
    rests = [differing(*pair) for pair in zip(left, entered, strict=True)]  # mostly at their ends
    return items_of(gone for gone, _ in rests), items_of(new for _, new in rests)


def _short_free_lists(
    before: Sequence[int], after: Sequence[int], hits: set[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two free lists, without all but one of the successive blocks that they share.

    One stays, so that a block before or behind them is seen to be there. All stay if a hit is one
    of them.
    """
    if not (isinstance(before, SharedOrder) and isinstance(after, SharedOrder)):
        return tuple(before), tuple(after)
    start, begin, count = shared_runs(before, after)
    shared = before.runs[start : start + count]
    if hits and not hits.isdisjoint(items_of(shared)):
        return tuple(before), tuple(after)

    def short(runs: tuple[tuple[int, ...], ...], first: int) -> tuple[int, ...]:
        return items_of((*runs[:first], *(run[:1] for run in shared[:1]), *runs[first + count :]))

    return short(before.runs, start), short(after.runs, begin)
