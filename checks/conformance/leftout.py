"""What a driver leaves out of its records: what is then not compared, and who may not look at it.

A rule that asks for something that was not told must not be judged: it would judge the value that
stands in its place. `Guarded` lets a rule run on a step and stops it where it asks for such a
field.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any

from checks.conformance.moves import VISIBLE
from spec.records import Chunk, Step
from spec.state import Sequence, State

_ATTRIBUTES: dict[str, tuple[tuple[type, str], ...]] = {
    "tkv": ((Step, "tkv"), (Step, "volume"), (State, "last_tkv")),
    "batch": ((Step, "batch"), (Step, "volume")),
    "blocks": (
        *((State, "pool"), (Sequence, "blocks"), (Sequence, "hit_blocks")),
        *((Chunk, "block_table"), (Chunk, "writes")),
    ),
    "computed": ((Sequence, "computed"), (Sequence, "tkv")),
    "left_padding": ((Sequence, "left_padding"), (Sequence, "tkv")),
    "reserved": ((Sequence, "reserved"),),
    "hit_blocks": ((Sequence, "hit_blocks"),),
    "waited_steps": ((Sequence, "waited_steps"),),
}
BEFORE = "before"  # what arrivals and aborts did; without it the script is taken at its word
NAMES = (*_ATTRIBUTES, BEFORE)
NEVER_TOLD = ("events", "refusal")  # only the scheduler knows why

_QUEUES = ("waiting", "prefilling", "decoding", "paused")
_PLACES: dict[type, tuple[str, ...]] = {
    Step: ("",),
    State: ("before.", "after."),
    Chunk: ("chunk.",),
    Sequence: (
        *(f"{side}.{queue}." for side in ("before", "after") for queue in _QUEUES),
        "batch.",
    ),
}


def not_compared(left_out: Collection[str]) -> frozenset[str]:
    """The fields, named as comparisons name them, that are not there to compare."""
    named = {f"{place}{name}" for kind, name in _attributes(left_out) for place in _PLACES[kind]}
    return frozenset(named | ({BEFORE} & set(left_out)))


def _attributes(left_out: Collection[str]) -> Iterator[tuple[type, str]]:
    yield from ((Step, name) for name in NEVER_TOLD)
    for entry in left_out:
        yield from _ATTRIBUTES.get(entry, ())


class UntoldError(Exception):
    """A rule asked for something that the driver does not tell."""


class Guarded:
    """A step, state, chunk or row; asking it for what was not told raises `UntoldError`.

    Only the step itself is wrapped where nothing of the states is left out.
    """

    def __init__(self, whole: Any, untold: frozenset[tuple[type, str]]) -> None:
        self._whole = whole
        self._untold = untold
        self._names = {name for kind, name in untold if kind is type(whole)}
        self._all = any(kind is not Step for kind, _ in untold)

    def __getattr__(self, name: str) -> Any:
        if name in self._names:
            raise UntoldError(name)
        if name == "happened":
            value = _visible_only(self._whole.happened)
        else:
            value = getattr(self._whole, name)
            value = _guarded(value, self._untold) if self._all else value
        self.__dict__[name] = value  # is found there when the next rule asks
        return value

    def __eq__(self, other: object) -> bool:
        return bool(self._whole == (other._whole if isinstance(other, Guarded) else other))

    def __hash__(self) -> int:
        return hash(self._whole)


def guard_of(left_out: Collection[str]) -> Callable[[Any], Any]:
    """Wraps what rules are given, so that they cannot ask for what was left out."""
    untold = frozenset(_attributes(left_out))
    whole_states = all(kind is Step for kind, _ in untold)

    def guarded(value: Any) -> Any:
        return value if whole_states and isinstance(value, State) else Guarded(value, untold)

    return guarded


def _guarded(value: Any, untold: frozenset[tuple[type, str]]) -> Any:
    if type(value) in (State, Sequence, Chunk):
        return Guarded(value, untold)
    if isinstance(value, tuple):
        return tuple(_guarded(one, untold) for one in value)
    return value


def _visible_only(happened: Callable[..., Any]) -> Callable[..., Any]:
    def asked(*transitions: str) -> Any:
        for name in transitions:
            if name not in VISIBLE:
                raise UntoldError(name)
        return happened(*transitions)

    return asked
