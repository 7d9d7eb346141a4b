"""Unreported fields: which fields are then not compared, and which rules cannot judge.

A rule that reads an unreported field must not judge: it would judge a placeholder. `Guard` wraps a
step so that reading such a field raises `UnreportedError`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import Any, TypeAlias, get_args

from attrs import field, fields, fields_dict, frozen, has

from spec.core.records import HISTORY, state_class

Attributes: TypeAlias = tuple[tuple[type, str], ...]

BEFORE = "before"  # the state after arrivals and aborts; if unreported, it follows from the actions
STATES = "the queues and the rows in them"
ROWS = "rows"  # the numbers of all requests
NOT_COMPARED = ("events", "refusal")  # drivers need not report them
REPORTING_ABILITY = {
    "events": "order",
    "refusal": "refusal",
}  # the ability with which a driver says it


@frozen(kw_only=True, slots=False)
class Fields:
    """The fields that drivers of a policy may leave out.

    `step`: the class of the policy's steps. `left_out`: by field name, the attributes of steps and
    states that are then unknown. `visible`: transitions that follow from the states. `shown_by`: by
    field name, the visible transitions that follow from this field alone. `in_totals`: fields of a
    state whose total is compared instead. `inferred`: attributes that rules may read because they
    follow from the rest of a record; they are not compared. `never`: attributes of a step that
    rules may read only if the system has the ability to report them: the rule of a refusal and,
    where states leave it open, the order of events. `renamed`: by field of a record, the attributes
    that it stands for where these have other names. `by_ability`: fields that are left out unless
    the ability of the same name says otherwise; drivers that are older than they have none.

    A log may leave out any field of a record: then the attributes of the same name are unknown.
    """

    step: type
    left_out: Mapping[str, Attributes] = field(factory=dict)
    visible: tuple[str, ...] = ()
    shown_by: Mapping[str, tuple[str, ...]] = field(factory=dict)
    in_totals: tuple[str, ...] = ()
    inferred: Attributes = ()
    never: tuple[str, ...] = NOT_COMPARED
    renamed: Mapping[str, Attributes] = field(factory=dict)
    by_ability: tuple[str, ...] = ()

    @cached_property
    def state(self) -> type[Any]:
        """The class of the policy's states."""
        kind: type[Any] = state_class(self.step)
        return kind

    @cached_property
    def places(self) -> Mapping[type, tuple[str, ...]]:
        """By class in a step, the prefixes of its attributes' names in comparisons."""
        by_class: dict[type, list[str]] = {}
        for kind, place in _places(self.step, "", self.step.__module__.rpartition(".")[0]):
            by_class.setdefault(kind, []).append(place)
        return {kind: tuple(places) for kind, places in by_class.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all fields that a driver may leave out."""
        return (*self.left_out, BEFORE)

    def unreported(self, abilities: Collection[str], left_out: Collection[str]) -> frozenset[str]:
        """The fields that a driver with these abilities leaves out; `left_out`: those it names."""
        return frozenset(left_out).union(set(self.by_ability).difference(abilities))

    def not_compared(self, unreported: Collection[str]) -> frozenset[str]:
        """The fields that cannot be compared, named as in comparisons."""
        totals = {(self.state, name) for name in self.in_totals}
        attributes = self.attributes(unreported).keys() | totals
        named = {f"{place}{name}" for kind, name in attributes for place in self.places[kind]}
        return frozenset(named.union(NOT_COMPARED, {BEFORE} & set(unreported)))

    def attributes(
        self, unreported: Collection[str], abilities: Collection[str] = ()
    ) -> Mapping[tuple[type, str], str]:
        """The attributes that no rule may read, for a system with these abilities.

        Each with the entry of `left_out` or the ability that would report it; "history" for what no
        scheduler keeps.
        """
        required_report = {(self.step, name): REPORTING_ABILITY[name] for name in self.never}
        hidden = [self.state] if self.hides_states(unreported) else []
        history = [key.name for key in fields(self.state) if key.metadata == HISTORY]
        return {
            **{(self.state, name): "history" for name in history},
            **{(kind, key.name): STATES for kind in hidden for key in fields(kind)},
            **({(self.step, "aborted"): STATES} if hidden else {}),
            **{attribute: by for attribute, by in required_report.items() if by not in abilities},
            **{
                attribute: name
                for name in sorted(unreported)
                for attribute in self._unknown_attributes(name)
            },
        }

    def hides_states(self, unreported: Collection[str]) -> bool:
        """True if so much of the states is unknown that no event can be inferred from them."""
        return any(
            kind is not self.step
            for name in unreported
            if name not in self.left_out
            for kind, _ in self._unknown_attributes(name)
        )

    def _unknown_attributes(self, name: str) -> Attributes:
        """The attributes that are unknown without this field of a record."""
        known = self.left_out.get(name) or self.renamed.get(name)
        if known is not None or name == BEFORE:
            return known or ()
        kinds = {kind: fields_dict(kind) for kind in self.places}
        named = tuple((kind, name) for kind, keys in kinds.items() if name in keys)
        if named or name != ROWS:
            return named
        rows = {kind: keys for kind, keys in kinds.items() if "id" in keys}
        return tuple((kind, key) for kind, keys in rows.items() for key in keys if key != "id")


def _places(kind: type, place: str, package: str) -> Iterator[tuple[type, str]]:
    """A class and the classes of the policy's package in its attributes, with their prefixes."""
    yield kind, place
    for key in fields(kind):
        for inner in (key.type, *get_args(key.type)):
            if has(inner) and inner.__module__.startswith(package):
                yield from _places(inner, f"{place}{key.name}.", package)


class UnreportedError(Exception):
    """A rule read an unreported attribute; the text names what would report it."""


class Guard:
    """Wraps steps and states so that rules cannot read unreported attributes."""

    def __init__(
        self, fields: Fields, unreported: Collection[str], abilities: Collection[str] = ()
    ) -> None:
        """`unreported` and `abilities`: from the system's `Hello`."""
        self.fields = fields
        hidden = fields.attributes(unreported, abilities)
        inferred = () if fields.hides_states(unreported) else fields.inferred
        self.attributes = {
            attribute: by for attribute, by in hidden.items() if attribute not in inferred
        }
        self.hidden = {
            attribute: name
            for name in sorted(unreported)
            for attribute in (
                fields.visible if fields.hides_states({name}) else fields.shown_by.get(name, ())
            )
        }

    @cached_property
    def states_are_whole(self) -> bool:
        """True if states have all attributes: then only the step is wrapped."""
        return all(kind is self.fields.step for kind, _ in self.attributes)

    def __call__(self, value: Any) -> Any:
        """The step or state, wrapped if attributes are unreported."""
        if self.states_are_whole and isinstance(value, self.fields.state):
            return value
        return _Guarded(value, self)


class _Guarded:
    """A step, state, chunk or row; reading an unreported attribute raises `UnreportedError`."""

    def __init__(self, whole: Any, guard: Guard) -> None:
        self._whole = whole
        self._guard = guard
        self._said_by = {
            name: by for (kind, name), by in guard.attributes.items() if kind is type(whole)
        }

    def __getattr__(self, name: str) -> Any:
        if name in self._said_by:
            raise UnreportedError(self._said_by[name])
        derived = getattr(type(self._whole), name, None)
        if isinstance(derived, property) and derived.fget is not None:
            value = derived.fget(self)  # it may read what is unreported
        else:
            value = getattr(self._whole, name)
        if name == "happened":
            value = _visible_only(value, self._guard)
        elif not self._guard.states_are_whole:
            value = _guarded(value, self._guard)
        self.__dict__[name] = value  # cached for the next rule
        return value

    def __eq__(self, other: object) -> bool:
        return bool(self._whole == (other._whole if isinstance(other, _Guarded) else other))

    def __hash__(self) -> int:
        return hash(self._whole)

    def __repr__(self) -> str:
        return repr(self._whole)


def _guarded(value: Any, guard: Guard) -> Any:
    if type(value) in guard.fields.places:
        return _Guarded(value, guard)
    if isinstance(value, tuple):
        return tuple(_guarded(item, guard) for item in value)
    return value


def _visible_only(happened: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    def asked(*transitions: str) -> Any:
        for name in transitions:
            if name in guard.hidden or name not in guard.fields.visible:
                raise UnreportedError(guard.hidden.get(name, name))
        return happened(*transitions)

    return asked
