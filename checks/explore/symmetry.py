"""Symmetry reduction: requests that differ only in their id need not be distinguished.

Renaming changes every field of a state that holds one request or several, and every set of ids.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from attrs import evolve, fields

from checks.explore.instance import Instance
from spec.core.records import SomeState
from spec.core.requests import Request

StateT = TypeVar("StateT", bound=SomeState)


def without_names(
    instance: Instance[Any], alike: Callable[[Request], Hashable]
) -> Callable[[StateT], StateT]:
    """A function that renames interchangeable requests of a state in the order of their places.

    Requests are interchangeable if `alike` is equal for them and the instance allows them the same
    events. In a state the present requests come first, in its order. In an instance where requests
    return none are interchangeable: one may starve while another is served again and again.
    """
    groups = interchangeable(instance, alike)
    if not groups:
        return lambda state: state

    def representative(state: StateT) -> StateT:
        order = [request.id for request in state.present]
        order += [*sorted(state.finished), *sorted(state.aborted)]
        names: dict[str, str] = {}
        for group in groups:
            names.update(zip((id_ for id_ in order if id_ in group), group, strict=False))
        if all(old == new for old, new in names.items()):
            return state
        renamed: StateT = _renamed_within(state, names)
        return renamed

    return representative


def place_function(
    instance: Instance[Any], alike: Callable[[Request], Hashable]
) -> Callable[[SomeState], Mapping[str, int]] | None:
    """A function to the places of interchangeable requests in a state; None if there are none.

    A present request has a place of its own. In each group the finished requests share a place, as
    do the aborted ones and those that have not arrived.
    """
    groups = interchangeable(instance, alike)
    if not groups:
        return None

    def places(state: SomeState) -> dict[str, int]:
        ordered = [*([row.id] for row in state.present), state.finished, state.aborted]
        arrived = set().union(*ordered)
        numbers: dict[str, int] = {}
        place = 0
        for group in groups:
            for ids in (*ordered, {*group} - arrived):
                members = [id_ for id_ in ids if id_ in group and id_ not in numbers]
                numbers.update(dict.fromkeys(members, place))
                place += len(members)
        return numbers

    return places


def interchangeable(
    instance: Instance[Any], alike: Callable[[Request], Hashable]
) -> list[list[str]]:
    """The requests that `without_names` does not distinguish, in groups of two or more."""
    if instance.returning:
        return []
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for request in instance.requests:
        groups[alike(request), instance.allowed_events(request.id)].append(request.id)
    return [group for group in groups.values() if len(group) > 1]


def _renamed_within(state: Any, names: Mapping[str, str]) -> Any:
    values = {key.name: getattr(state, key.name) for key in fields(type(state))}
    return evolve(state, **{name: _renamed(value, names) for name, value in values.items()})


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """The value of a field with its requests renamed; any other value unchanged."""
    match value:
        case frozenset():
            return frozenset(names.get(id_, id_) for id_ in value)
        case tuple():
            return tuple(_renamed(item, names) for item in value)
    return evolve(value, id=names[value.id]) if getattr(value, "id", None) in names else value
