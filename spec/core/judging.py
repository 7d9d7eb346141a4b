"""What rules of several policies look at: pools, places of requests, a step's free list."""

from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator
from functools import wraps
from itertools import chain, filterfalse
from typing import Any, Self, TypeVar

from attrs import define

from spec.core.blocks import BlockPool
from spec.core.records import Event, SomeSequence, SomeState
from spec.core.requests import Request

One = TypeVar("One")
Other = TypeVar("Other")
Result = TypeVar("Result")


def once(function: Callable[[One, Other], Result]) -> Callable[[One, Other], Result]:
    """The function, computed once where several rules ask with the same objects in succession.

    What it said of the last few pairs is remembered: a step has two changes, or three.
    """
    last: deque[tuple[One, Other, Result]] = deque(maxlen=3)  # the newest first

    @wraps(function)
    def remembering(one: One, other: Other) -> Result:
        for known, known_other, result in last:
            if known is one and known_other is other:
                return result
        result = function(one, other)
        last.appendleft((one, other, result))
        return result

    return remembering


# --- predicates -----------------------------------------------------------------------------------


def free_or_held(pool: BlockPool) -> Iterator[str]:
    """Free and held blocks together are the pool, each of them once."""
    listed = len(pool.free) + len(pool.references)
    if not listed == len({*pool.free, *pool.references}) == pool.size:
        yield f"{len(pool.free)} free and {len(pool.references)} held of {pool.size} blocks"


def holders_of(rows: Iterable[SomeSequence]) -> "Counter[int]":
    """How often each block stands in a table of these requests."""
    return Counter(chain.from_iterable(one.blocks for one in rows))


def references_are_holders(pool: BlockPool, rows: Iterable[SomeSequence]) -> Iterator[str]:
    """A block's reference count is how often it stands in the tables of `rows`."""
    holders, counted = holders_of(rows), pool.references
    if holders != counted:
        for block in holders.keys() | counted.keys():
            count, held = counted.get(block, "none"), holders.get(block, "none")
            if count != held:
                yield f"block {block}: reference count {count}, holders {held}"


def cache_maps_agree(pool: BlockPool) -> Iterator[str]:
    """Keys by block and blocks by key describe the same set of pairs."""
    by_key = {block: key for key, blocks in pool.cached.items() for block in blocks}
    listed = sum(map(len, pool.cached.values()))
    if by_key != pool.keys or listed != len(by_key):
        yield f"{len(pool.keys)} keys by block, {listed} blocks by key"


def one_place_each(state: SomeState) -> Iterator[str]:
    """No request is in two places, those of requests that have left included."""
    places = [*(one.id for one in state.present), *state.finished, *state.aborted]
    if len(set(places)) != len(places):
        yield f"in several places: {[one for one, count in Counter(places).items() if count > 1]}"


def begin_alike(one: Request, other: Request, count: int) -> bool:
    """True if the first `count` tokens of two requests are equal, prompts and answers."""
    if one.prompt.begins_like(other.prompt, count):  # of the same named streams
        return True
    return one.first_tokens(count) == other.first_tokens(count)


# --- the free list --------------------------------------------------------------------------------


def sharing(
    rows: Iterable[SomeSequence], given_back: Container[str], hits: Iterable[Event]
) -> list[SomeSequence]:
    """The rows that hold a block which those named `given_back` hold, or take as one of the hits.

    So many holders of a block decide whether it is free once these give it back.
    """
    known = [*rows]
    blocks = {*chain.from_iterable(one.blocks for one in known if one.id in given_back)}
    blocks.update(chain.from_iterable(one.after for one in hits if one.id in given_back))
    return [one for one in known if not blocks.isdisjoint(one.blocks)] if blocks else []


@define
class FreeList:
    """The free list while the events of a step are applied to it, and what each request holds.

    `free`: in the order in which blocks are handed out. `tables`: blocks by request. `holders`: how
    often each block stands in a table.
    """

    free: tuple[Any, ...]
    tables: dict[str, tuple[int, ...]]
    holders: "Counter[int]"

    @classmethod
    def of(cls, free: Iterable[Any], rows: Iterable[SomeSequence], **more: Any) -> Self:
        """The free list beside the tables of these requests."""
        tables = {one.id: one.blocks for one in rows}
        holders = Counter(chain.from_iterable(tables.values()))
        return cls(tuple(free), tables, holders, **more)

    def take(self, owner: str, blocks: Iterable[int]) -> None:
        """The blocks stand behind the owner's table, and are free no more wherever they stood."""
        taken = tuple(blocks)
        if self.free[: len(taken)] == taken:
            self.free = self.free[len(taken) :]
        else:
            self.free = tuple(filterfalse({*taken}.__contains__, self.free))
        self._hold(owner, taken)

    def hand_out(self, owner: str, blocks: Iterable[int]) -> None:
        """As many blocks as these leave the head of the list; these are the owner's."""
        given = tuple(blocks)
        self.free = self.free[len(given) :]
        self._hold(owner, given)

    def _hold(self, owner: str, blocks: tuple[int, ...]) -> None:
        self.tables[owner] = self.tables.get(owner, ()) + blocks
        self.holders.update(blocks)

    def give_back(self, owner: str) -> list[int]:
        """The owner's blocks that no other request holds, its last first; its table is empty."""
        freed = []
        for block in reversed(self.tables.pop(owner, ())):
            self.holders[block] -= 1
            if not self.holders[block]:
                del self.holders[block]
                freed.append(block)
        self.tables[owner] = ()
        return freed

    def put(self, front: Iterable[int], back: Iterable[int]) -> None:
        """Blocks that were given back join the list on either end."""
        self.free = (*front, *self.free, *back)
