"""Maps, sets and orders that never change and share what they have in common.

A state holds them, so they are hashable and comparable. The pool of a server has thousands of
blocks of which a step moves a few: states that follow each other share the rest.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import chain
from typing import Any, TypeVar, overload
from weakref import ref

Key = TypeVar("Key")
Value = TypeVar("Value")
Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)

_CHANGES = 8  # twice those of a step, about
_SMALLER = 8  # a base this many times larger than its differences is kept
_MOST_UNSEEN = 500  # maps, one made from the other, before one is worked out all the same


def _is_much(differing: int, base: int) -> bool:
    """True if what differs from a base should be made a base with it.

    Each version copies what differs, and each new base all: both cost least together when versions
    copy as much as new bases do.
    """
    return differing * differing > _CHANGES * base


class DerivedMap(Mapping[Key, Value]):
    """A mapping that never changes, made from another by a few changes and without copying it.

    It is worked out when it is first looked at, or when many maps behind it were not. Maps that are
    made one from the other share a base and hold what differs from it. As soon as that is much, the
    next one is made a base, which shares a larger base in the same way as long as that is large.
    Such a map equals a dict of the same items, has the hash of a `frozenset` of them, and the order
    of a dict to which the same changes were made.

    `changed`: the keys that were set or taken out when it was made from `origin`.
    """

    __slots__ = (
        "__weakref__",
        "_base",
        "_gone",
        "_hash",
        "_length",
        "_origin",
        "_over",
        "_pending",
        "_unseen",
        "changed",
    )
    _base: Mapping[Key, Value]
    _over: dict[Key, Value]  # what is set over the base
    _gone: set[Key]  # of the base; such a key stands behind all others if it was set again
    _length: int
    _origin: "ref[DerivedMap[Key, Value]] | None"
    # What it is to be made of; None once it is worked out.
    _pending: "tuple[Mapping[Key, Value], Mapping[Key, Value | None]] | None"
    _unseen: int  # maps derived one from the other since the last that was computed
    changed: Set[Key]

    @classmethod
    def of(
        cls, origin: Mapping[Key, Value], changes: Mapping[Key, Value | None]
    ) -> "DerivedMap[Key, Value]":
        """`origin` with `changes` over it, which stay as they are; None for what it lacks."""
        made = cls()
        made.changed = changes.keys()
        made._pending, made._origin, made._unseen = (origin, changes), None, 1
        if isinstance(origin, DerivedMap):
            made._origin, made._unseen = ref(origin), origin._unseen + 1
        if made._unseen >= _MOST_UNSEEN:
            made._compute()
        return made

    def _compute(self) -> None:
        """Take what was last worked out, and make all changes to it since."""
        made: list[Mapping[Key, Value | None]] = []
        known: Mapping[Key, Value] = self
        while isinstance(known, DerivedMap) and known._pending is not None:
            known, changes = known._pending
            made.append(changes)
        if isinstance(known, DerivedMap):
            self._base, self._over, self._gone = known._base, known._over.copy(), {*known._gone}
        else:
            self._base, self._over, self._gone = known, {}, set()
        self._length, self._pending, self._unseen = len(known), None, 0
        for changes in reversed(made):
            self._change(changes)
        self._share_more()

    def _change(self, changes: Mapping[Key, Value | None]) -> None:
        """Only while it is being made."""
        base, over, gone, length = self._base, self._over, self._gone, self._length
        for key, value in changes.items():
            in_base = key in base
            was_there = key in over or (in_base and key not in gone)
            if value is not None:
                over[key] = value
                length += not was_there
            elif was_there:
                over.pop(key, None)
                length -= 1
                if in_base:
                    gone.add(key)
        self._length = length

    def _share_more(self) -> None:
        """Only while it is being made: what differs goes into the base, if it is much."""
        base, over, gone = self._base, self._over, self._gone
        if isinstance(base, DerivedMap):
            if not _is_much(len(over) + len(gone), len(base._over) + len(base._gone)):
                return
            over = {key: value for key, value in base._over.items() if key not in gone} | over
            gone = base._gone | {key for key in gone if key in base._base}
            base = base._base
        shared = DerivedMap[Key, Value]()
        shared._base, shared._over, shared._gone, shared._length = base, over, gone, self._length
        shared._pending = None
        is_small = _SMALLER * (len(over) + len(gone)) >= len(base)
        self._base, self._over, self._gone = shared._whole() if is_small else shared, {}, set()

    @property
    def origin(self) -> "DerivedMap[Key, Value] | None":
        """The map that this one was made from; None if it is not known any more."""
        return None if self._origin is None else self._origin()

    def __getitem__(self, key: Key) -> Value:
        if self._pending is not None:
            self._compute()
        if key in self._over:
            return self._over[key]
        if key in self._gone:
            raise KeyError(key)
        return self._base[key]

    def get(self, key: Key, default: Any = None) -> Any:
        """As of a dict, without an exception for a key that it lacks."""
        if self._pending is not None:
            self._compute()
        if key in self._over:
            return self._over[key]
        return default if key in self._gone else self._base.get(key, default)

    def __contains__(self, key: object) -> bool:
        if self._pending is not None:
            self._compute()
        return key in self._over or (key in self._base and key not in self._gone)

    def __len__(self) -> int:
        if self._pending is not None:
            self._compute()
        return self._length

    def __iter__(self) -> Iterator[Key]:
        return iter(self._whole())

    def _whole(self) -> Mapping[Key, Value]:
        if self._pending is not None:
            self._compute()
        base = self._base._whole() if isinstance(self._base, DerivedMap) else self._base
        if not self._over and not self._gone:
            return base
        whole = dict(base)
        for key in self._gone:
            del whole[key]
        whole.update(self._over)
        return whole

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return self._whole() == other if isinstance(other, Mapping) else NotImplemented

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            self._hash: int = hash(frozenset(self._whole().items()))
            return self._hash

    def __repr__(self) -> str:
        return repr(dict(self._whole()))

    def __reduce__(self) -> tuple[Any, ...]:
        return (DerivedMap.of, (dict(self._whole()), {}))


class DerivedSet(Set[Key]):
    """A set that never changes, made from another by a few more items and without copying it.

    It is equal to the `frozenset` of its items and has its hash; what is made of it is one.

    `added`: the items that `origin` lacked when it was made from it.
    """

    __slots__ = ("__weakref__", "_base", "_origin", "_over", "added")
    _base: frozenset[Key]
    _over: frozenset[Key]  # what the base lacks
    _origin: "ref[DerivedSet[Key]] | None"
    added: frozenset[Key]

    @classmethod
    def of(cls, origin: Set[Key], items: Iterable[Key]) -> "DerivedSet[Key]":
        """`origin` and these items."""
        made = cls()
        if isinstance(origin, DerivedSet):
            made._base, made._over, made._origin = origin._base, origin._over, ref(origin)
        else:
            made._base, made._over, made._origin = frozenset(origin), frozenset(), None
        made.added = frozenset(item for item in items if item not in origin)
        made._over |= made.added
        if _is_much(len(made._over), len(made._base)):
            made._base, made._over = made._base | made._over, frozenset()
        return made

    def __contains__(self, item: object) -> bool:
        return item in self._over or item in self._base

    def __len__(self) -> int:
        return len(self._base) + len(self._over)

    def __iter__(self) -> Iterator[Key]:
        return chain(self._base, self._over)

    @classmethod
    def _from_iterable(cls, items: Iterable[Any]) -> Any:
        return frozenset(items)

    def __sub__(self, other: Set[Any]) -> frozenset[Key]:
        """What `other` lacks; where this one was made from it by way of others, what they added."""
        added, known = set[Key](), self
        while known is not other:
            added |= known.added
            origin = None if known._origin is None else known._origin()
            if origin is None:
                return frozenset(item for item in self if item not in other)
            known = origin
        return frozenset(added)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return frozenset(self) == other if isinstance(other, Set) else NotImplemented

    def __hash__(self) -> int:
        return hash(frozenset(self))

    def __repr__(self) -> str:
        return repr({*self})

    def __reduce__(self) -> tuple[Any, ...]:
        return (frozenset, (tuple(self),))


class SharedOrder(Sequence[Item_co]):
    """Items in an order that never changes, in runs: orders made one after the other share most.

    It is equal to the tuple of its items and has its hash; its slices are orders that share, too.
    """

    __slots__ = ("_hash", "_length", "runs")

    def __init__(self, runs: tuple[tuple[Item_co, ...], ...]) -> None:
        self.runs = runs

    def __len__(self) -> int:
        try:
            return self._length
        except AttributeError:
            self._length: int = sum(map(len, self.runs))
            return self._length

    def __iter__(self) -> Iterator[Item_co]:
        return chain.from_iterable(self.runs)

    @overload
    def __getitem__(self, place: int) -> Item_co: ...

    @overload
    def __getitem__(self, place: slice) -> "SharedOrder[Item_co]": ...

    def __getitem__(self, place: int | slice) -> "Item_co | SharedOrder[Item_co]":
        if isinstance(place, slice):
            start, stop, stride = place.indices(len(self))
            pieces = self._pieces(start, stop) if stride == 1 else [tuple(self)[place]]
            return SharedOrder(tuple(filter(None, pieces)))
        if not -len(self) <= place < len(self):
            raise IndexError(f"place {place} of {len(self)}")
        first = place % len(self)
        return next(filter(None, self._pieces(first, first + 1)))[0]

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[Item_co, ...]]:
        """Of each run what stands from `start` on and before `stop`."""
        for run in self.runs:
            if stop <= 0:
                return
            yield run[max(start, 0) : stop]
            start, stop = start - len(run), stop - len(run)

    def __contains__(self, item: object) -> bool:
        return any(item in run for run in self.runs)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SharedOrder):
            if len(self) != len(other):
                return False
            return self.runs == other.runs or tuple(self) == tuple(other)
        return tuple(self) == other

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            self._hash: int = hash(tuple(self))
            return self._hash

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return (tuple, (tuple(self),))
