"""What a rule is, whatever scheduler it is about: id, sentence, source, predicate and witness.

A predicate yields what it found wrong, a line each, and nothing where the rule holds. It is
given only what anybody can observe of a scheduler, so the same rule judges the reference, the
engine, a recorded trace and a released scheduler. A witness is a step that must be reachable
somewhere, so that no rule holds only because it never applies.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from attrs import define, field, frozen


class Kind(StrEnum):
    """When a rule is judged."""

    ALWAYS = "always"  # in every state
    STEP = "step"  # of every scheduler step
    GUARD = "guard"  # of every step that takes, or refuses, the transition that it guards
    BETWEEN = "between"  # of every change between two steps: arrivals and aborts
    EVENTUALLY = "eventually"  # along every path on which the scheduler keeps stepping


@frozen
class Source:
    """Where a rule is written: a text and the section of it."""

    text: str
    section: str

    def __str__(self) -> str:
        return f"{self.text}, {self.section}"


class Moved(Protocol):
    """A step, as far as every rule looks at it: states of the kind that the rule is about."""

    @property
    def before(self) -> Any:
        """What it started from."""

    @property
    def after(self) -> Any:
        """What it left."""


# The configuration, the context, the states and the steps of one policy.
Conf = TypeVar("Conf")
Ctx = TypeVar("Ctx")
At = TypeVar("At")
By = TypeVar("By", bound=Moved)

InState: TypeAlias = Callable[[Ctx, At], Iterator[str]]
OfStep: TypeAlias = Callable[[Ctx, By], Iterator[str]]
OfChange: TypeAlias = Callable[[Ctx, At, At], Iterator[str]]
Goal: TypeAlias = Callable[[At], bool]
Look: TypeAlias = Callable[[Ctx, At, At], At | None]
Witness: TypeAlias = Callable[[Ctx, By], bool]
Applies: TypeAlias = Callable[[Conf], bool]


def _whole(_ctx: object, _before: At, after: At) -> At:
    return after


@frozen
class Rule(Generic[Conf, Ctx, At, By]):
    """One rule. `in_state`, `of_step` or `of_change` holds its predicate, by its kind.

    `goal` is that of an `eventually` rule: a state that must be reached from every other.
    `applies` tells under which configurations the rule is meant. `look` is what a state predicate
    must be shown of the state after a change to notice that the rule, which held before, is broken
    now; None: nothing.
    """

    id: str
    sentence: str
    source: Source
    kind: Kind
    witness: Witness[Ctx, By]
    applies: Applies[Conf]
    look: Look[Ctx, At] = _whole
    in_state: InState[Ctx, At] | None = None
    of_step: OfStep[Ctx, By] | None = None
    of_change: OfChange[Ctx, At] | None = None
    goal: Goal[At] | None = None

    def found_in_state(self, ctx: Ctx, state: At) -> str | None:
        """What is wrong with the state, or None."""
        return next(self.in_state(ctx, state), None) if self.in_state else None

    def found_of_step(self, ctx: Ctx, step: By) -> str | None:
        """What is wrong with the step or with the state that it left, or None."""
        if self.of_step:
            return next(self.of_step(ctx, step), None)
        return self.found_after(ctx, step.before, step.after)

    def found_after(self, ctx: Ctx, before: At, after: At) -> str | None:
        """What is wrong with the state `after`, where the rule held `before`, or None."""
        if before is after or self.in_state is None:
            return None
        seen = self.look(ctx, before, after)
        found = None if seen is None else self.found_in_state(ctx, seen)
        if found is None or seen is after:
            return found
        return self.found_in_state(ctx, after) or found  # told of the whole state

    def found_between(self, ctx: Ctx, before: At, after: At) -> str | None:
        """What is wrong with how one step's end became the next one's beginning, or None."""
        if self.of_change is None or before is after or before == after:
            return None
        return next(self.of_change(ctx, before, after), None)


AnyRule: TypeAlias = Rule[Any, Any, Any, Any]  # for whoever shows rules and judges nothing


def _everywhere(_config: object) -> bool:
    return True


@define
class Registry(Generic[Conf, Ctx, At, By]):
    """The rules of one policy by id, in the order in which they are registered.

    Each method but the last makes a decorator that registers the function and leaves it alone.
    """

    rules: dict[str, Rule[Conf, Ctx, At, By]] = field(factory=dict)

    def always(
        self,
        id_: str,
        sentence: str,
        source: Source,
        *,
        witness: Witness[Ctx, By],
        applies: Applies[Conf] = _everywhere,
        look: Look[Ctx, At] = _whole,
    ) -> Callable[[InState[Ctx, At]], InState[Ctx, At]]:
        """A rule about every state."""

        def register(predicate: InState[Ctx, At]) -> InState[Ctx, At]:
            self._add(Rule(id_, sentence, source, Kind.ALWAYS, witness, applies, look, predicate))
            return predicate

        return register

    def of_step(
        self,
        id_: str,
        sentence: str,
        source: Source,
        *,
        witness: Witness[Ctx, By],
        applies: Applies[Conf] = _everywhere,
        kind: Kind = Kind.STEP,
    ) -> Callable[[OfStep[Ctx, By]], OfStep[Ctx, By]]:
        """A rule about every step (or a guard)."""

        def register(predicate: OfStep[Ctx, By]) -> OfStep[Ctx, By]:
            self._add(Rule(id_, sentence, source, kind, witness, applies, of_step=predicate))
            return predicate

        return register

    def between(
        self,
        id_: str,
        sentence: str,
        source: Source,
        *,
        witness: Witness[Ctx, By],
        applies: Applies[Conf] = _everywhere,
    ) -> Callable[[OfChange[Ctx, At]], OfChange[Ctx, At]]:
        """A rule about what happens between two steps."""

        def register(predicate: OfChange[Ctx, At]) -> OfChange[Ctx, At]:
            kind = Kind.BETWEEN
            self._add(Rule(id_, sentence, source, kind, witness, applies, of_change=predicate))
            return predicate

        return register

    def eventually(
        self,
        id_: str,
        sentence: str,
        source: Source,
        *,
        witness: Witness[Ctx, By],
        applies: Applies[Conf] = _everywhere,
    ) -> Callable[[Goal[At]], Goal[At]]:
        """A rule about every fair path; the function tells a state that is the goal."""

        def register(goal: Goal[At]) -> Goal[At]:
            kind = Kind.EVENTUALLY
            self._add(Rule(id_, sentence, source, kind, witness, applies, goal=goal))
            return goal

        return register

    def applicable(self, config: Conf) -> list[Rule[Conf, Ctx, At, By]]:
        """The rules that are meant under this configuration, in the order of the registry."""
        return [rule for rule in self.rules.values() if rule.applies(config)]

    def _add(self, rule: Rule[Conf, Ctx, At, By]) -> None:
        if rule.id in self.rules:
            raise ValueError(f"two rules are called {rule.id}")
        self.rules[rule.id] = rule


def judge(
    rules: Iterable[Rule[Conf, Ctx, At, By]], ctx: Ctx, step: By
) -> Iterator[tuple[Rule[Conf, Ctx, At, By], str]]:
    """Every rule that a step breaks, with what was found."""
    for rule in rules:
        found = rule.found_of_step(ctx, step)
        if found is not None:
            yield rule, found
