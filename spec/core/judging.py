"""Predicates of several policies, and the free list while the events of a step change it."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Self

from attrs import define

from spec.core.blocks import BlockPool
from spec.core.records import Event, SomeSequence, SomeState, SomeTable
from spec.core.requests import Request


def ids(rows: Iterable[SomeSequence | Event]) -> set[str]:
    """The ids of these requests, or of the requests of these events."""
    return {row.id for row in rows}


# --- predicates -----------------------------------------------------------------------------------


def free_or_held(pool: BlockPool) -> Iterator[str]:
    """Free and held blocks together are the pool, each of them once."""
    listed = len(pool.free) + len(pool.references)
    if not listed == len({*pool.free, *pool.references}) == pool.size:
        yield f"{len(pool.free)} free and {len(pool.references)} held of {pool.size} blocks"


def holders_of(rows: Iterable[SomeTable]) -> "Counter[int]":
    """How often each block stands in a table of these requests."""
    return Counter(chain.from_iterable(row.blocks for row in rows))


def references_are_holders(pool: BlockPool, rows: Iterable[SomeTable]) -> Iterator[str]:
    """A block's reference count is how often it stands in the tables of `rows`."""
    holders, counted = holders_of(rows), pool.references
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
    places = [*(row.id for row in state.present), *state.finished, *state.aborted]
    if len(set(places)) != len(places):
        yield f"in several places: {[id_ for id_, count in Counter(places).items() if count > 1]}"


def begin_alike(request: Request, other: Request, count: int) -> bool:
    """True if the first `count` tokens of two requests are equal, prompts and answers."""
    if request.prompt.begins_like(other.prompt, count):  # of the same named streams
        return True
    return request.first_tokens(count) == other.first_tokens(count)


# --- the free list --------------------------------------------------------------------------------


@define
class FreeList:
    """The free list while the events of a step are applied to it, and the tables of requests.

    `free`: in the order in which blocks are handed out. `tables`: blocks by request. `holders`: how
    often each block stands in a table.
    """

    free: list[int]
    tables: dict[str, tuple[int, ...]]
    holders: "Counter[int]"

    @classmethod
    def of(cls, pool: BlockPool, rows: Iterable[SomeTable]) -> Self:
        """The free list of the pool beside the tables of these requests."""
        tables = {row.id: row.blocks for row in rows}
        return cls([*pool.free], tables, Counter(chain.from_iterable(tables.values())))

    def take(self, owner: str, blocks: Iterable[int]) -> None:
        """The blocks join the end of the owner's table and leave the list, in any place of it."""
        taken = tuple(blocks)
        gone = {*taken}
        self.free = [block for block in self.free if block not in gone]
        self._hold(owner, taken)

    def hand_out(self, owner: str, blocks: Iterable[int]) -> None:
        """These blocks join the owner's table, and as many leave the head of the list."""
        given = tuple(blocks)
        del self.free[: len(given)]
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
                freed.append(block)
        return freed

    def put(self, front: Iterable[int], back: Iterable[int]) -> None:
        """Blocks that were given back join the list on either end."""
        self.free = [*front, *self.free, *back]
