"""Two records of the same step, held against each other field by field.

Fields are named as the records name them: `kind`, `tkv`, `after.decoding.computed`,
`before.pool.free`. Values that are equal as a whole are not looked into.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Set
from collections.abc import Sequence as Seq
from enum import Enum, StrEnum
from itertools import zip_longest
from math import isfinite
from typing import Any, TypeAlias

from attrs import fields, frozen, has


class Strictness(StrEnum):
    """What must agree.

    `exact`: every field of the step and of the states before and after. `observable`: what a
    trace file shows of the step. `decisions`: what was scheduled and what came out.
    """

    EXACT = "exact"
    OBSERVABLE = "observable"
    DECISIONS = "decisions"


@frozen
class Difference:
    """A field in which two records of a step differ.

    `field`: its name. `place`: which request, block or entry of it, or nothing. `expected` is the
    reference's value, `found` the target's.
    """

    field: str
    place: str
    expected: Any
    found: Any


Look: TypeAlias = Callable[[Any], Mapping[str, Any]]
"""The values of a step that are compared, by name: the decisive ones first."""


def by_fields(*names: str) -> Look:
    """Looks at the fields of these names."""
    return lambda step: {name: getattr(step, name) for name in names}


def in_lines(as_json: Callable[[Any], Mapping[str, Any]], *names: str) -> Look:
    """Looks at these fields of the lines of a trace that steps are written as."""

    def look(step: Any) -> Mapping[str, Any]:
        line = as_json(step)
        return {name: line[name] for name in names}

    return look


DECISIONS = ("kind", "scheduled", "outputs", "finished")
_IN_PLACE = ("before", "after", "events", "index", "time")


def looks_at(step: type, *decisions: str) -> dict[Strictness, Look]:
    """How steps of a class are compared: what was decided first, then what follows from it.

    `decisions`: the fields that say what was decided.
    """
    chosen, names = decisions or DECISIONS, [key.name for key in fields(step)]
    others = [name for name in names if name not in {*chosen, *_IN_PLACE}]
    return {
        Strictness.DECISIONS: by_fields(*chosen),
        Strictness.OBSERVABLE: by_fields(*chosen, "after"),
        Strictness.EXACT: by_fields("before", *chosen, *others, "after", "events"),
    }


def differences(
    look: Look, expected: Any, found: Any, unreported: Collection[str] = ()
) -> tuple[Difference, ...]:
    """Where `found` differs from `expected`, the decisive field first.

    `unreported`: fields, each with all below it, that do not count.
    """
    if not unreported and expected == found:
        return ()
    ours, theirs = look(expected), look(found)
    differing = [name for name in ours if name not in unreported and ours[name] != theirs[name]]
    seen = (
        difference
        for name in differing
        for difference in _between(name, "", ours[name], theirs[name])
    )
    return tuple(
        difference for difference in seen if not _is_unreported(difference.field, unreported)
    )


def _is_unreported(field: str, unreported: Collection[str]) -> bool:
    return any(field == name or field.startswith(f"{name}.") for name in unreported)


def _between(name: str, place: str, expected: Any, found: Any) -> Iterator[Difference]:
    """The differing parts of two values; lists and tuples of the same entries are the same."""
    if expected == found:
        return
    if has(type(expected)) and type(expected) is type(found):
        for key in fields(type(expected)):
            ours, theirs = getattr(expected, key.name), getattr(found, key.name)
            yield from _between(f"{name}.{key.name}", place, ours, theirs)
    elif isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in sorted({**expected, **found}, key=str):
            where = f"{place} {_text(key)}".strip()
            yield from _between(name, where, expected.get(key), found.get(key))
    elif isinstance(expected, (list, tuple)) and isinstance(found, (list, tuple)):
        yield from _between_lists(name, place, expected, found)
    else:
        yield Difference(name, place, expected, found)


def _between_lists(
    name: str, place: str, expected: Seq[Any], found: Seq[Any]
) -> Iterator[Difference]:
    if list(expected) == list(found):
        return
    if name == "events":
        yield _first_event(name, expected, found)
        return
    ours, theirs = list(map(_request_name, expected)), list(map(_request_name, found))
    if ours != theirs or None in ours:
        yield Difference(name, place, _as_listed(expected), _as_listed(found))
        return
    for request_id, our_row, their_row in zip(ours, expected, found, strict=True):
        yield from _between(name, str(request_id), our_row, their_row)


def _first_event(name: str, expected: Seq[Any], found: Seq[Any]) -> Difference:
    """The first two events that differ; what follows usually differs for the same reason."""
    pairs = enumerate(zip_longest(expected, found))
    index, (ours, theirs) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
    return Difference(name, str(index), ours, theirs)


def _request_name(row: Any) -> str | None:
    """The request that an entry of a queue or a batch is about, or nothing."""
    if has(type(row)) and hasattr(row, "computed"):  # a row of any scheduler
        return str(row.id)
    return row["id"] if isinstance(row, dict) and "computed" in row else None


def _as_listed(entries: Seq[Any]) -> list[Any]:
    """A list as its readers want it: of a queue its requests, else the entries."""
    return [_request_name(entry) or entry for entry in entries]


def _text(key: Any) -> str:
    return key.hex() if isinstance(key, bytes) else str(key)


def plain_json(value: Any) -> Any:
    """Any value of a step or state as JSON; what a system made up as Python writes it."""
    if has(type(value)):
        return {key.name: plain_json(getattr(value, key.name)) for key in fields(type(value))}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(plain_json(key)): plain_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(item) for item in value]
    if isinstance(value, Set):
        return sorted(map(plain_json, value), key=str)
    if isinstance(value, float) and not isfinite(value):
        return repr(value)
    return value if isinstance(value, (str, int, float, bool, type(None))) else repr(value)
