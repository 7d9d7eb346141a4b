"""Field-by-field comparison of two records of the same step.

Fields are named as in the records: `kind`, `tkv`, `after.decoding.computed`, `before.pool.free`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Set
from collections.abc import Sequence as Seq
from enum import Enum, StrEnum
from itertools import zip_longest
from math import isfinite
from typing import Any, TypeAlias

from attrs import fields, frozen, has

from spec.core.records import HISTORY


class Strictness(StrEnum):
    """Which fields must agree.

    `exact`: every field of the step and of the states before and after. `observable`: what a
    trace file shows of the step. `decisions`: what was scheduled and what came out.
    """

    EXACT = "exact"
    OBSERVABLE = "observable"
    DECISIONS = "decisions"


@frozen
class Difference:
    """A field in which two records of a step differ.

    `field`: its name. `place`: the request, block or entry in it, or empty. `expected`: the
    reference's value; `found`: the value of the system under test.
    """

    field: str
    place: str
    expected: Any
    found: Any


Look: TypeAlias = Callable[[Any], Mapping[str, Any]]
"""Maps a step to the values that are compared, by name: the scheduler's decisions first."""


def by_fields(*names: str) -> Look:
    """Compares the fields with these names."""
    return lambda step: {name: getattr(step, name) for name in names}


def in_lines(as_json: Callable[[Any], Mapping[str, Any]], *names: str) -> Look:
    """Compares these fields of the trace lines that `as_json` makes of the steps."""

    def look(step: Any) -> Mapping[str, Any]:
        line = as_json(step)
        return {name: line[name] for name in names}

    return look


DECISIONS = ("kind", "scheduled", "outputs", "finished")
_IN_PLACE = ("before", "after", "events", "index", "time")


def compared_fields(step: type, *decisions: str) -> dict[Strictness, Look]:
    """The compared fields of a step class for each strictness: decisions first.

    `decisions`: the fields with the scheduler's decisions; by default `DECISIONS`.
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
    """The fields in which `found` differs from `expected`, decisions first.

    `unreported`: fields that are ignored, together with all fields below them.
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
    """The differing parts of two values; a list equals a tuple with the same entries."""
    if expected == found:
        return
    if has(type(expected)) and type(expected) is type(found):
        for key in fields(type(expected)):
            if key.metadata == HISTORY:
                continue
            ours, theirs = getattr(expected, key.name), getattr(found, key.name)
            yield from _between(f"{name}.{key.name}", place, ours, theirs)
    elif isinstance(expected, Mapping) and isinstance(found, Mapping):
        for key in sorted({**expected, **found}, key=str):
            where = f"{place} {key_text(key)}".strip()
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
    """The first pair of events that differ: later pairs usually differ for the same reason."""
    pairs = enumerate(zip_longest(expected, found))
    index, (ours, theirs) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
    return Difference(name, str(index), ours, theirs)


def _request_name(row: Any) -> str | None:
    """The request id of a row in a queue or a batch; None for other entries."""
    if has(type(row)) and hasattr(row, "computed"):  # a row of any scheduler
        return str(row.id)
    return row["id"] if isinstance(row, dict) and "computed" in row else None


def _as_listed(entries: Seq[Any]) -> list[Any]:
    """A list as it is printed: the request ids of a queue, else the entries."""
    return [_request_name(entry) or entry for entry in entries]


def key_text(key: Any) -> str:
    """The key of a mapping as text; bytes in hexadecimal."""
    return key.hex() if isinstance(key, bytes) else str(key)


def plain_json(value: Any) -> Any:
    """A value of a step or state as JSON; values of unknown types as their `repr`."""
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
