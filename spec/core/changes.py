"""What differs between two states, so that a rule need not look again at what it has judged.

States share their parts: a request or a map that nothing happened to is the same object before and
after. If a rule held before, only the rest can break it. `Change.requests` and `Change.pool` are
the state after the change, reduced to that rest; the same predicate that judges a whole state
judges them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from functools import cached_property, wraps
from itertools import chain
from operator import attrgetter, is_
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from attrs import evolve, frozen

from spec.core.blocks import BlockPool
from spec.core.judging import once
from spec.core.records import SomeContext, SomeSequence, SomeState
from spec.core.sharing import DerivedMap, FrozenMap, Order, SharedMap, SharedOrder

Key = TypeVar("Key")
Value = TypeVar("Value")
Row: TypeAlias = Any  # a request of the policy's own class
Rows = tuple[Row, ...]
Blocks = tuple[int, ...]


_name: Callable[[Row], str] = attrgetter("id")


class AdmittingState(SomeState, Protocol):
    """A scheduler at rest that says which requests it has admitted."""

    @property
    def admitted(self) -> Sequence[SomeSequence]:
        """Every request that was admitted and has not left, or has blocks still."""


StateT = TypeVar("StateT", bound=AdmittingState)


@frozen(slots=False, eq=False)
class Change(Generic[StateT]):
    """From one state to another: by a step, or between two steps."""

    before: StateT
    after: StateT

    @cached_property
    def queue(self) -> tuple[Rows, Rows]:
        """Requests that waited before and not after, and after and not before, as they were."""
        return differing(self.before.waiting, self.after.waiting)

    @cached_property
    def left(self) -> Rows:
        """Requests present before, without those that waited and do so still, untouched."""
        return (*self.queue[0], *self.before.admitted)

    @cached_property
    def entered(self) -> Rows:
        """Requests present after, without those that waited before and do so still, untouched."""
        return (*self.queue[1], *self.after.admitted)

    @cached_property
    def names(self) -> tuple[frozenset[str], frozenset[str]]:
        """The names of those in `left` and of those in `entered`."""
        return ids(self.left), ids(self.entered)

    @cached_property
    def touched(self) -> tuple[Rows, Rows]:
        """Those in `left` and in `entered`, without what both begin and end with."""
        return differing(self.left, self.entered)

    @cached_property
    def moved_tables(self) -> tuple[list[Blocks], list[Blocks]]:
        """Of the tables before and after, what is left when all that both have is taken away.

        A request's table is compared with its own: if it grew only the rest is left. Which request
        has a table does not matter.
        """
        left, entered = self.touched
        known: dict[str, Blocks] = {one.id: one.blocks for one in left}
        if len(known) < len(left):  # a name twice: then tables cannot be told apart
            return [one.blocks for one in left], [one.blocks for one in entered]
        rests = []
        for one in entered:
            before, table = known.pop(one.id, ()), one.blocks
            if before is not table:
                rests.append(differing(before, table))
        gone = [*known.values(), *(one for one, _ in rests)]
        return [one for one in gone if one], [other for _, other in rests if other]

    @cached_property
    def finished(self) -> Set[str]:
        """Requests that have finished."""
        return _added(self.before.finished, self.after.finished)

    @cached_property
    def aborted(self) -> Set[str]:
        """Requests that were aborted."""
        return _added(self.before.aborted, self.after.aborted)

    @cached_property
    def requests(self) -> StateT:
        """The state after, but of the waiting only those that were not waiting before."""
        if not self.after.waiting:
            return self.after
        return _with(self.after, waiting=self.queue[1])

    @cached_property
    def places(self) -> StateT | None:
        """The state after, but of those that left only newcomers and those present before.

        Requests that wait untouched are left out too, unless a new one could have the same name.
        None if the same names stand in places as before, and as many.
        """
        known, now = self.names
        stayed = known == now and len(self.left) == len(self.entered) == len(now)
        if stayed and not (self.finished or self.aborted):
            return None
        gone, away = self.finished | self.after.finished & now, self.aborted
        waiting = self.queue[1] if now | gone | away <= known else self.after.waiting
        away |= self.after.aborted & (now | gone)
        return _with(self.after, waiting=waiting, finished=gone, aborted=away)

    @cached_property
    def pool(self) -> StateT:
        """The state after, its pool reduced to blocks to which something happened, and no content.

        The whole state if the blocks left out are not those to which nothing happened.
        """
        before, after = self.before.pool, self.after.pool
        left, entered = _moved(before.free, after.free)
        blocks = {*left} ^ {*entered} | changed(before.references, after.references)
        free = tuple(block for block in entered if block in blocks)
        references = _only(after.references, blocks)
        kept = len(after.free) - len(free) + len(after.references) - len(references)
        if kept != after.size - len(blocks):
            return self.after
        return _with(self.after, pool=BlockPool(len(blocks), free, references))

    @cached_property
    def moved_blocks(self) -> tuple[FrozenMap[int, int], list[Blocks]] | None:
        """Counts of blocks, less the holders that they had before and still have; and new tables.

        Only of blocks whose count changed, or of which a table has more or fewer; None if there is
        none. Any other holder of such a block was one before, when the count was right: what it
        counted beyond the tables that changed is taken off.
        """
        before, after = (state.pool.references for state in (self.before, self.after))
        left, entered = self.moved_tables
        counted = changed(before, after)
        if not (counted or left or entered):
            return None
        gone = Counter(chain.from_iterable(left))
        references = {}
        for block in {*counted, *gone, *chain.from_iterable(entered)}:
            others = before.get(block, 0) - gone[block]
            if after.get(block, 0) != others or after.get(block) == 0:
                references[block] = after.get(block, 0) - others
        return FrozenMap(references), entered

    def contents_of(self, held: Iterable[int]) -> BlockPool:
        """Of the pool what these blocks hold, and what has changed of its contents."""
        keys, cached = _contents(self.before.pool, self.after.pool, held)
        return BlockPool(0, (), FrozenMap(), keys, cached)

    def altered(self, are_alike: Callable[[Row, Row], bool]) -> Rows:
        """Admitted requests that are not alike before and after, and those with a changed key.

        Also those with another table, and those that were not admitted before.
        """
        was, now = self.touched
        keys = changed(self.before.pool.keys, self.after.pool.keys)
        waited, rows = ids(self.queue[0]), self.after.admitted
        known = {one.id: one for one in was if one.id not in waited}
        altered = set()
        for one in now:
            before = known.get(one.id)
            if before is None or before.blocks != one.blocks or not are_alike(before, one):
                altered.add(one.id)
        if not (altered or keys):
            return ()
        # The others are looked through only for blocks that have more holders than these.
        tables = (keys.intersection(one.blocks) for one in rows if one.id in altered)
        counts, held = self.after.pool.references, Counter(chain.from_iterable(tables))
        elsewhere = {block for block in keys if counts.get(block, 0) > held[block]}
        return tuple(
            one
            for one in rows
            if one.id in altered or (elsewhere and not elsewhere.isdisjoint(one.blocks))
        )


_change_between: Any = once(Change)


def change_between(before: StateT, after: StateT) -> Change[StateT]:
    """What differs between two states, worked out once for all who ask in succession."""
    change: Change[StateT] = _change_between(before, after)
    return change


Look: TypeAlias = Callable[[Any, StateT, StateT], StateT | None]
Reduced: TypeAlias = Callable[[SomeContext, Change[StateT]], StateT | None]


def looking(kind: type[StateT]) -> Callable[[Reduced[StateT]], Look[StateT]]:
    """Makes the `look` of a state rule of what it must be shown of the change to a state.

    A stand-in for a state of this class cannot be reduced: it is shown as it is.
    """

    def looking_at(reduced: Reduced[StateT]) -> Look[StateT]:
        def look(ctx: SomeContext, before: StateT, after: StateT) -> StateT | None:
            return reduced(ctx, change_between(before, after)) if isinstance(after, kind) else after

        return look

    return looking_at


def _with(state: StateT, **parts: Any) -> StateT:
    known: Any = state  # of an attrs class
    made: StateT = evolve(known, **parts)
    return made


def new_requests(_ctx: SomeContext, change: Change[StateT]) -> StateT | None:
    """What rules see that judge each request by itself: those that wait untouched are left out."""
    return change.requests


def changed_pool(_ctx: SomeContext, change: Change[StateT]) -> StateT | None:
    """What rules see about the blocks of the pool, each by itself, whatever they hold."""
    return None if change.before.pool is change.after.pool else change.pool


def changed_contents(_ctx: SomeContext, change: Change[StateT]) -> StateT | None:
    """What rules see about the contents of the pool, each by itself."""
    before, after = change.before.pool, change.after.pool
    if before.keys is after.keys and before.cached is after.cached:
        return None
    return _with(change.after, pool=change.contents_of(()))


def ids(rows: Iterable[Row]) -> frozenset[str]:
    """The names of these requests."""
    return frozenset(map(_name, rows))


def differing(
    before: Order[Value], after: Order[Value]
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """What stands between the longest common beginning and end of two orders, of each.

    Compared by slices, which costs little where the items are the same objects.
    """
    if before is after:
        return (), ()
    start, end = common_ends(before, after)
    return tuple(before[start : len(before) - end]), tuple(after[start : len(after) - end])


def common_ends(before: Order[Value], after: Order[Value]) -> tuple[int, int]:
    """How many items two orders have in common at their beginning, and of the rest at their end."""
    if before is after:
        return len(before), 0
    if isinstance(before, SharedOrder) and isinstance(after, SharedOrder):
        return _common_ends_of_runs(before, after)
    fewer = len(before) - len(after)
    if fewer >= 0 and before[fewer:] == after:  # taken from the head, the usual case
        return 0, len(after)
    if fewer < 0 and before[:1] == after[-fewer : 1 - fewer] and after[-fewer:] == before:
        return 0, len(before)  # put in front
    if fewer < 0 and after[:fewer] == before:
        return len(before), 0  # put behind
    start = _common_start(before, after)
    return start, _common_end(before[start:], after[start:])


def _common_ends_of_runs(before: SharedOrder[Value], after: SharedOrder[Value]) -> tuple[int, int]:
    """The same, but of the runs that both share none is looked into."""
    start, begin, count = _shared_runs(before, after)
    shared = sum(map(len, before.runs[start : start + count]))
    head, other_head = _items(before.runs[:start]), _items(after.runs[:begin])
    tail, other_tail = _items(before.runs[start + count :]), _items(after.runs[begin + count :])
    if head == other_head:
        more, end = common_ends(tail, other_tail)
        return len(head) + shared + more, end
    if tail == other_tail:
        first, more = common_ends(head, other_head)
        return first, more + shared + len(tail)
    return _common_start(head, other_head), _common_end(tail, other_tail)


def _items(runs: Iterable[tuple[Value, ...]]) -> tuple[Value, ...]:
    return tuple(chain.from_iterable(runs))


def _common_start(before: Order[Value], after: Order[Value]) -> int:
    return _common(len(before), len(after), lambda low, high: before[low:high] == after[low:high])


def _common_end(before: Order[Value], after: Order[Value]) -> int:
    def same_end(low: int, high: int) -> bool:
        ends = len(before) - high, len(before) - low, len(after) - high, len(after) - low
        return before[ends[0] : ends[1]] == after[ends[2] : ends[3]]

    return _common(len(before), len(after), same_end)


def of_each(
    function: Callable[[Any, Row], Value],
) -> Callable[[Any, Order[Row]], list[Value]]:
    """The function of each item of an order; of orders that follow each other, of new items only.

    For orders whose items are looked at again and again: a queue of which some are taken out, and
    to which others come. The list is not to be changed.
    """
    last: list[tuple[Any, Order[Row], list[Value]]] = []

    @wraps(function)
    def remembering(one: Any, items: Order[Row]) -> list[Value]:
        known, before, results = last[0] if last else (None, (), [])
        if known is not one:
            before, results = (), []
        if items is not before:
            start, end = common_ends(before, items)
            new = [function(one, item) for item in items[start : len(items) - end]]
            results = [*results[:start], *new, *results[len(results) - end :]]
            last[:] = [(one, items, results)]
        return results

    return remembering


def _common(length: int, other: int, are_same: Callable[[int, int], bool]) -> int:
    """How many items are the same, counted from one side: by doubling, then by halving."""
    low, high, stride = 0, min(length, other), 1
    while low < high and are_same(low, min(low + stride, high)):
        low, stride = min(low + stride, high), 2 * stride
    high = min(low + stride - 1, high)
    while low < high:
        middle = (low + high + 1) // 2
        if are_same(low, middle):
            low = middle
        else:
            high = middle - 1
    return low


def changed(before: SharedMap[Key, Any], after: SharedMap[Key, Any]) -> set[Key]:
    """The keys under which two maps differ, and perhaps others."""
    keys: set[Key] = set()
    known: SharedMap[Key, Any] | None = after
    while known is not before:
        if not isinstance(known, DerivedMap):
            return {key for key, _ in before.items() ^ after.items()}
        keys.update(known.changed)
        known = known.origin
    return keys


def keys_with(condition: Callable[[Any], bool]) -> Callable[[SharedMap[Any, Any]], frozenset[Any]]:
    """The keys whose value meets the condition; of maps that follow each other, looked at once.

    What was said of the last map is kept: only where the next one differs it is looked at.
    """
    last: list[tuple[SharedMap[Any, Any], frozenset[Any]]] = []

    def remembering(whole: SharedMap[Any, Any]) -> frozenset[Any]:
        before, known = last[0] if last else (FrozenMap[Any, Any](), frozenset[Any]())
        if whole is not before:
            looked_at = changed(before, whole)
            met = {key for key in looked_at if key in whole and condition(whole[key])}
            if met or not looked_at.isdisjoint(known):
                known = known.difference(looked_at) | met
            last[:] = [(whole, known)]
        return known

    return remembering


@once
def _shared_runs(before: SharedOrder[Any], after: SharedOrder[Any]) -> tuple[int, int, int]:
    """Where runs that both orders share begin, in each, and how many follow there."""
    start, begin = _first_shared(before.runs, after.runs)
    are_same = [*map(is_, before.runs[start:], after.runs[begin:])]
    return start, begin, are_same.index(False) if False in are_same else len(are_same)


def _first_shared(before: Sequence[Value], after: Sequence[Value]) -> tuple[int, int]:
    """Where an item stands that is the same object in both, in each; behind them if none is."""
    for start, begin in ((0, 0), (1, 1), (1, 0), (0, 1)):  # nearly always there
        if any(map(is_, before[start : start + 1], after[begin : begin + 1])):
            return start, begin
    places = {id(one): place for place, one in enumerate(after)}
    shared = ((place, places[id(one)]) for place, one in enumerate(before) if id(one) in places)
    return next(shared, (len(before), len(after)))


def _moved(
    before: Order[Value], after: Order[Value]
) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
    """The items of two orders, of each without what stands in the other in the same way."""
    if not (isinstance(before, SharedOrder) and isinstance(after, SharedOrder)):
        return differing(before, after)
    start, begin, count = _shared_runs(before, after)
    left = before.runs[:start] + before.runs[start + count :]
    entered = after.runs[:begin] + after.runs[begin + count :]
    if len(left) != len(entered):
        return _items(left), _items(entered)
    rests = [differing(*pair) for pair in zip(left, entered, strict=True)]  # mostly at their ends
    return _items(gone for gone, _ in rests), _items(new for _, new in rests)


def without_middle(
    before: Order[int], after: Order[int], needed: Set[int]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Two orders of blocks, with one item in both for successive blocks that they share.

    The item equals no block. Nothing is left out if there is one of the `needed` in it.
    """
    if not (isinstance(before, SharedOrder) and isinstance(after, SharedOrder)):
        return tuple(before), tuple(after)
    start, begin, count = _shared_runs(before, after)
    middle = before.runs[start : start + count]
    if needed and not needed.isdisjoint(chain.from_iterable(middle)):
        return tuple(before), tuple(after)
    left_out = object()

    def reduced(runs: tuple[Blocks, ...], first: int) -> tuple[Any, ...]:
        rest = chain.from_iterable(runs[first + count :])
        return (*chain.from_iterable(runs[:first]), left_out, *rest)

    return reduced(before.runs, start), reduced(after.runs, begin)


def _contents(before: BlockPool, after: BlockPool, more: Iterable[int] = ()) -> tuple[Any, Any]:
    """What is cached in blocks, and what blocks hold a content, where either has changed.

    Also what is cached in `more` blocks.
    """
    blocks = changed(before.keys, after.keys).union(more)
    contents = changed(before.cached, after.cached)
    contents |= {key for pool in (before, after) for b in blocks if (key := pool.keys.get(b))}
    for pool in (before, after):
        blocks.update(block for key in contents for block in pool.cached.get(key, ()))
    return _only(after.keys, blocks), _only(after.cached, contents)


def _only(whole: SharedMap[Key, Value], wanted: Iterable[Key]) -> FrozenMap[Key, Value]:
    return FrozenMap((key, value) for key in wanted if (value := whole.get(key)) is not None)


def _added(before: Set[str], after: Set[str]) -> Set[str]:
    return frozenset() if before is after else after - before
