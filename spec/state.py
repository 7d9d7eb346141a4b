"""What can be seen of a scheduler between two steps: requests in their phases, and the pool.

Rules speak about these classes, whoever produced them: the reference, the engine, a trace read
from a file, a driver of a released scheduler. All are immutable, hashable and comparable.
"""

from collections.abc import Mapping
from typing import Any, NoReturn, Self, TypeVar
from weakref import ref

from attrs import field, frozen

from spec.requests import BlockKey

Key = TypeVar("Key")
Value = TypeVar("Value")

PADDING_BLOCK = 0  # the dummy block: padding is read from it, redirected writes go to it


class FrozenMap(dict[Key, Value]):
    """A small mapping that never changes once made, so that a state can hold it and hash it."""

    __slots__ = ("_hash",)

    def __hash__(self) -> int:  # type: ignore[override]
        try:
            return self._hash
        except AttributeError:
            self._hash: int = hash(frozenset(self.items()))
            return self._hash

    def set(self, changes: Mapping[Key, Value]) -> Self:
        """A copy with `changes` over it."""
        return type(self)(self | dict(changes))

    def without(self, *keys: Key) -> Self:
        """A copy that lacks `keys`."""
        return type(self)((key, value) for key, value in self.items() if key not in keys)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (dict(self),))

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("a FrozenMap never changes; use set() or without() for a copy")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


class DerivedMap(FrozenMap[Key, Value]):
    """A map that knows which one it was made from, as long as somebody else keeps that one.

    `changed`: the keys that were set or taken out then.
    """

    __slots__ = ("__weakref__", "_origin", "changed")
    changed: frozenset[Key]
    _origin: "ref[DerivedMap[Key, Value]] | None"

    @classmethod
    def of(
        cls, origin: FrozenMap[Key, Value], changes: Mapping[Key, Value | None]
    ) -> "DerivedMap[Key, Value]":
        """`origin` with `changes` over it, None for what it lacks."""
        made = cls(origin)  # nobody has it yet, so that it may still change
        for key, value in changes.items():
            if value is None:
                dict.pop(made, key, None)
            else:
                dict.__setitem__(made, key, value)
        made.changed = frozenset(changes)
        made._origin = ref(origin) if isinstance(origin, DerivedMap) else None
        return made

    @property
    def origin(self) -> "FrozenMap[Key, Value] | None":
        """The map that this one was made from; None if it is not known any more."""
        made_from = getattr(self, "_origin", None)
        return None if made_from is None else made_from()


@frozen(cache_hash=True)
class Sequence:
    """A request inside the scheduler; lengths in tokens.

    `computed`: tokens whose keys and values are in the cache, those of reused blocks included.
    `generated`: tokens sampled so far. `prefill_len`: tokens that its prefill covers (the
    prompt; after a preemption also what it had generated). `left_padding`: of its last decode
    step. `blocks`: its block table without padding. `reserved`: blocks promised to it and not
    yet handed out. `hit_blocks`: cached blocks found when it was admitted. `waited_steps`:
    decode steps since it was paused.
    """

    id: str
    prefill_len: int
    computed: int = 0
    generated: int = 0
    left_padding: int = 0
    blocks: tuple[int, ...] = ()
    reserved: int = 0
    hit_blocks: int = 0
    waited_steps: int = 0

    @property
    def tkv(self) -> int:
        """Padded position up to which its cache is populated (spyre, "Key concepts")."""
        return self.left_padding + self.computed


@frozen(cache_hash=True)
class BlockPool:
    """The KV blocks 1 to `size`: who is free, in which order, who is shared, what is cached.

    `free`: blocks that nobody holds, in the order in which they are handed out.
    `references`: holders of each held block. `keys`: content of each cached block.
    `cached`: blocks that hold a content, the one found by a lookup first.
    """

    size: int
    free: tuple[int, ...]
    references: FrozenMap[int, int] = field(factory=FrozenMap)
    keys: FrozenMap[int, BlockKey] = field(factory=FrozenMap)
    cached: FrozenMap[BlockKey, tuple[int, ...]] = field(factory=FrozenMap)


@frozen(cache_hash=True)
class State:
    """A scheduler at rest. A request is in exactly one of the places, from arrival on.

    `waiting` in queue order; `decoding` in batch order; `paused` in the order of pausing;
    `finished` and `aborted` have left. `last_kind` and `last_tkv` are of the step before.
    """

    pool: BlockPool
    waiting: tuple[Sequence, ...] = ()
    prefilling: Sequence | None = None
    decoding: tuple[Sequence, ...] = ()
    paused: tuple[Sequence, ...] = ()
    finished: frozenset[str] = frozenset()
    aborted: frozenset[str] = frozenset()
    last_kind: str = "idle"
    last_tkv: int = 0

    @property
    def admitted(self) -> tuple[Sequence, ...]:
        """Every request that was admitted and has not left."""
        own = () if self.prefilling is None else (self.prefilling,)
        return (*own, *self.decoding, *self.paused)

    @property
    def present(self) -> tuple[Sequence, ...]:
        """Every request that has arrived and has not left."""
        return (*self.waiting, *self.admitted)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """The running queue: a prefill goes before the batch when it ran last, else behind."""
        if self.prefilling is None:
            return self.decoding
        if self.last_kind == "prefill":
            return (self.prefilling, *self.decoding)
        return (*self.decoding, self.prefilling)

    @property
    def is_idle(self) -> bool:
        """True if no request is pending."""
        return not self.waiting and not self.admitted
