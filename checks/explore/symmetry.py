"""Symmetry: requests that differ in nothing but their id need not be distinguished.

What is renamed is found in the classes of a state: every field that holds a request or several, and
every set of ids.
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
    """The state with interchangeable requests named in the order of their places.

    Those requests are interchangeable for which `alike` is equal and to which the same may happen
    in the instance. In a state the ones that are present come first, in its order. Where clients
    come back none are: one may starve while another is served again and again.
    """
    groups = interchangeable(instance, alike)
    if not groups:
        return lambda state: state

    def representative(state: StateT) -> StateT:
        order = [one.id for one in state.present]
        order += [*sorted(state.finished), *sorted(state.aborted)]
        names: dict[str, str] = {}
        for group in groups:
            names.update(zip((one for one in order if one in group), group, strict=False))
        if all(old == new for old, new in names.items()):
            return state
        renamed: StateT = _renamed_within(state, names)
        return renamed

    return representative


def places_in(
    instance: Instance[Any], alike: Callable[[Request], Hashable]
) -> Callable[[SomeState], Mapping[str, int]] | None:
    """Where each interchangeable request stands in a state; None if `without_names` renames none.

    Requests of a group have places in the order of their names. Those that finished share one, as
    do those that were aborted and those that have not arrived.
    """
    groups = interchangeable(instance, alike)
    if not groups:
        return None

    def places(state: SomeState) -> dict[str, int]:
        ordered = [*([row.id] for row in state.present), state.finished, state.aborted]
        arrived = set().union(*ordered)
        found: dict[str, int] = {}
        place = 0
        for group in groups:
            for some in (*ordered, {*group} - arrived):
                members = [id_ for id_ in some if id_ in group and id_ not in found]
                found.update(dict.fromkeys(members, place))
                place += len(members)
        return found

    return places


def interchangeable(
    instance: Instance[Any], alike: Callable[[Request], Hashable]
) -> list[list[str]]:
    """The requests that `without_names` does not distinguish, in groups of two or more."""
    if instance.returning:
        return []
    groups: dict[Hashable, list[str]] = defaultdict(list)
    for request in instance.requests:
        groups[alike(request), instance.what_may_happen_to(request.id)].append(request.id)
    return [group for group in groups.values() if len(group) > 1]


def _renamed_within(state: Any, names: Mapping[str, str]) -> Any:
    values = {key.name: getattr(state, key.name) for key in fields(type(state))}
    return evolve(state, **{name: _renamed(value, names) for name, value in values.items()})


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """The value of a field with the requests in it renamed; any other value as it is."""
    match value:
        case frozenset():
            return frozenset(names.get(one, one) for one in value)
        case tuple():
            return tuple(_renamed(one, names) for one in value)
    return evolve(value, id=names[value.id]) if getattr(value, "id", None) in names else value
