"""What the steps of a system leave out: what is then not compared, and which rules cannot judge.

A rule that asks for something that was not reported must not be judged: it would judge the value
that stands in its place. `Guard` lets a rule run on a step and stops it where it asks for such a
field.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import Any, TypeAlias, get_args

from attrs import field, fields, frozen, has

from spec.core.records import state_class

Attributes: TypeAlias = tuple[tuple[type, str], ...]

BEFORE = "before"  # what arrivals and aborts did; without it the script is taken at its word
NOT_COMPARED = ("events", "refusal")  # only the scheduler knows why, and which rule it was
REPORTED_BY = {"events": "order", "refusal": "refusal"}  # the ability with which a driver says it


@frozen(kw_only=True, slots=False)
class Fields:
    """What drivers of a policy may leave out, and where it is missing then.

    `step`: the class of the policy's steps. `left_out`: by name the attributes that say nothing
    then. `visible`: transitions that show in the states. `shown_by`: by name of what may be left
    out, those of them that show in nothing else. `in_totals`: of a state what shows in a total
    only, which is compared instead. `inferred`: what follows from the rest of a record, as far as
    rules are concerned; it is not compared. `never`: of a step what no rule may look at unless the
    system says that it can report it: which rule refused, and, where states leave it open, in which
    order what happened.
    """

    step: type
    left_out: Mapping[str, Attributes] = field(factory=dict)
    visible: tuple[str, ...] = ()
    shown_by: Mapping[str, tuple[str, ...]] = field(factory=dict)
    in_totals: tuple[str, ...] = ()
    inferred: Attributes = ()
    never: tuple[str, ...] = NOT_COMPARED

    @cached_property
    def state(self) -> type[Any]:
        """The class of the policy's states."""
        kind: type[Any] = state_class(self.step)
        return kind

    @cached_property
    def places(self) -> Mapping[type, tuple[str, ...]]:
        """Of the classes that steps are made of, how comparisons begin their attributes' names."""
        found: dict[type, list[str]] = {}
        for kind, place in _places(self.step, "", self.step.__module__.rpartition(".")[0]):
            found.setdefault(kind, []).append(place)
        return {kind: tuple(places) for kind, places in found.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """All that a driver may name."""
        return (*self.left_out, BEFORE)

    def not_compared(self, unreported: Collection[str]) -> frozenset[str]:
        """The fields, named as comparisons name them, that are not there to compare."""
        totals = {(self.state, name) for name in self.in_totals}
        attributes = self.attributes(unreported).keys() | totals
        named = {f"{place}{name}" for kind, name in attributes for place in self.places[kind]}
        return frozenset(named.union(NOT_COMPARED, {BEFORE} & set(unreported)))

    def attributes(
        self, unreported: Collection[str], abilities: Collection[str] = ()
    ) -> Mapping[tuple[type, str], str]:
        """The attributes that no rule may look at, of a system with these abilities.

        Each with what would say it: an entry of `left_out`, or an ability.
        """
        said_by = {(self.step, name): REPORTED_BY[name] for name in self.never}
        return {
            **{attribute: by for attribute, by in said_by.items() if by not in abilities},
            **{
                attribute: name
                for name in sorted(unreported)
                for attribute in self.left_out.get(name, ())
            },
        }


def _places(kind: type, place: str, package: str) -> Iterator[tuple[type, str]]:
    """A class and those of the policy's own package that its attributes hold, with their places."""
    yield kind, place
    for key in fields(kind):
        for inner in (key.type, *get_args(key.type)):
            if has(inner) and inner.__module__.startswith(package):
                yield from _places(inner, f"{place}{key.name}.", package)


class UnreportedError(Exception):
    """A rule asked for something that the system does not report; the text is what would say it."""


class Guard:
    """Wraps what rules are given, so that they cannot ask for what was left out."""

    def __init__(
        self, fields: Fields, unreported: Collection[str], abilities: Collection[str] = ()
    ) -> None:
        """`unreported` and `abilities`: as the system's hello names them."""
        self.fields = fields
        hidden = fields.attributes(unreported, abilities)
        self.attributes = {
            attribute: by for attribute, by in hidden.items() if attribute not in fields.inferred
        }
        self.hidden = {
            attribute: name
            for name in sorted(unreported)
            for attribute in fields.shown_by.get(name, ())
        }

    @cached_property
    def states_are_whole(self) -> bool:
        """True if nothing of a state is left out: then only the step is wrapped."""
        return all(kind is self.fields.step for kind, _ in self.attributes)

    def __call__(self, value: Any) -> Any:
        """The step or state, as rules may see it."""
        if self.states_are_whole and isinstance(value, self.fields.state):
            return value
        return _Guarded(value, self)


class _Guarded:
    """A step, state, chunk or row; asking it for what was left out raises `UnreportedError`."""

    def __init__(self, whole: Any, guard: Guard) -> None:
        self._whole = whole
        self._guard = guard
        self._said_by = {
            name: by for (kind, name), by in guard.attributes.items() if kind is type(whole)
        }

    def __getattr__(self, name: str) -> Any:
        if name in self._said_by:
            raise UnreportedError(self._said_by[name])
        value = getattr(self._whole, name)
        if name == "happened":
            value = _visible_only(value, self._guard)
        elif not self._guard.states_are_whole:
            value = _guarded(value, self._guard)
        self.__dict__[name] = value  # is found there when the next rule asks
        return value

    def __eq__(self, other: object) -> bool:
        return bool(self._whole == (other._whole if isinstance(other, _Guarded) else other))

    def __hash__(self) -> int:
        return hash(self._whole)


def _guarded(value: Any, guard: Guard) -> Any:
    if type(value) in guard.fields.places:
        return _Guarded(value, guard)
    if isinstance(value, tuple):
        return tuple(_guarded(one, guard) for one in value)
    return value


def _visible_only(happened: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    def asked(*transitions: str) -> Any:
        for name in transitions:
            if name in guard.hidden or name not in guard.fields.visible:
                raise UnreportedError(guard.hidden.get(name, name))
        return happened(*transitions)

    return asked
