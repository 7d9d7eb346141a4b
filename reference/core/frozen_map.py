"""The map that the reference's states hold: a dict that never changes, so that it can be hashed."""

from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class FrozenMap(dict[Key, Value]):
    """A mapping that never changes; its hash is that of its items, in any order."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (dict(self),))

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a FrozenMap never changes; updated() and without() make another")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


def updated(known: Mapping[Key, Value], changes: Mapping[Key, Value]) -> FrozenMap[Key, Value]:
    """A copy of the map with these values set."""
    return FrozenMap({**known, **changes})


def without(known: Mapping[Key, Value], *keys: Key) -> FrozenMap[Key, Value]:
    """A copy of the map that lacks these keys."""
    left = dict(known)
    for key in keys:
        left.pop(key, None)
    return FrozenMap(left)
