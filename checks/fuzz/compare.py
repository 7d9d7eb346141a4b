"""Two records of the same step, held against each other field by field.

Fields are named as the records name them: `kind`, `tkv`, `after.decoding.computed`,
`before.pool.free`. Two steps that are equal as a whole are not looked into.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from enum import StrEnum
from itertools import zip_longest
from typing import Any

from attrs import fields, frozen, has

from checks.export.trace.line import Past
from checks.policies.spyre.codec import CODEC
from spec.spyre.records import Step


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


_DECISIONS = ("kind", "scheduled", "tkv", "outputs", "finished")

# A trace's fields but for the number of the step; `refusal` and `arrived` say why, not what.
_OBSERVABLE = (
    *("kind", "scheduled", "tkv", "volume", "outputs", "finished", "aborted", "waiting"),
    *("prefilling", "decoding", "running", "paused", "blocks", "block_tables", "events", "time"),
)

# What a step decided comes before what follows from it.
_EXACT = (
    *("before", "kind", "scheduled", "tkv", "volume", "refusal", "outputs", "finished"),
    *("ended", "aborted", "chunk", "batch", "after", "events", "index", "time"),
)


def differences(
    expected: Step,
    found: Step,
    strictness: Strictness = Strictness.EXACT,
    past: Past | None = None,
    leaves_out: Collection[str] = (),
) -> tuple[Difference, ...]:
    """Where `found` differs from `expected`, as strictly as asked for, the decisive field first.

    `past`: what was before the step. `leaves_out`: fields, each with all below it, that do not
    count.
    """
    if expected == found:
        return ()
    seen = _LOOK[strictness](expected, found, past)
    return tuple(one for one in seen if not _is_left_out(one.field, leaves_out))


def _is_left_out(field: str, leaves_out: Collection[str]) -> bool:
    return any(field == name or field.startswith(f"{name}.") for name in leaves_out)


def fields_differ(
    expected: Any, found: Any, names: Iterable[str], leaves_out: Collection[str] = ()
) -> Iterator[Difference]:
    """Where two steps of any scheduler differ in the fields of these names, in their order."""
    for name in names:
        for one in _between(name, "", getattr(expected, name), getattr(found, name)):
            if not _is_left_out(one.field, leaves_out):
                yield one


def _in_all_fields(expected: Step, found: Step, _past: Past | None) -> Iterator[Difference]:
    yield from fields_differ(expected, found, _EXACT)


def _in_a_trace(expected: Step, found: Step, past: Past | None) -> Iterator[Difference]:
    ours, theirs = CODEC.step_as_json(expected, past), CODEC.step_as_json(found, past)
    for name in _OBSERVABLE:
        yield from _between(name, "", ours[name], theirs[name])


def _in_decisions(expected: Step, found: Step, _past: Past | None) -> Iterator[Difference]:
    yield from fields_differ(expected, found, _DECISIONS)


_LOOK: dict[Strictness, Callable[[Step, Step, Past | None], Iterator[Difference]]] = {
    Strictness.EXACT: _in_all_fields,
    Strictness.OBSERVABLE: _in_a_trace,
    Strictness.DECISIONS: _in_decisions,
}


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
    ours, theirs = list(map(_name_of, expected)), list(map(_name_of, found))
    if ours != theirs or None in ours:
        yield Difference(name, place, _told(expected), _told(found))
        return
    for request_id, one, other in zip(ours, expected, found, strict=True):
        yield from _between(name, str(request_id), one, other)


def _first_event(name: str, expected: Seq[Any], found: Seq[Any]) -> Difference:
    """The first two events that differ; what follows usually differs for the same reason."""
    pairs = enumerate(zip_longest(expected, found))
    index, (one, other) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
    return Difference(name, str(index), one, other)


def _name_of(row: Any) -> str | None:
    """The request that an entry of a queue or a batch is about, or nothing."""
    if has(type(row)) and hasattr(row, "computed"):  # a row of any scheduler
        return str(row.id)
    return row["id"] if isinstance(row, dict) and "computed" in row else None


def _told(entries: Seq[Any]) -> list[Any]:
    """A list as its readers want it: of a queue who is in it, else the entries."""
    return [_name_of(one) or one for one in entries]


def _text(key: Any) -> str:
    return key.hex() if isinstance(key, bytes) else str(key)
