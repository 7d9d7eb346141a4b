"""Rules of any scheduler: id, sentence, source, predicate and witness.

A predicate yields what it found wrong, a line each, and nothing where the rule holds. It is given
only what can be observed of a scheduler from outside, so the same rule judges the reference, the
engine, a recorded trace and a released scheduler. A witness is a step that must be reachable
somewhere, so that no rule holds only because it never applies.
"""

import re
from collections.abc import Callable, Iterator
from enum import StrEnum
from inspect import getdoc
from typing import Any, Generic, TypeAlias, TypeVar

from attrs import define, field, frozen

from spec.core.records import StepRecord


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


# The configuration, the context, the states and the steps of one policy.
ConfigT = TypeVar("ConfigT")
ContextT = TypeVar("ContextT")
StateT = TypeVar("StateT")
StepT = TypeVar("StepT", bound=StepRecord)
PredicateT = TypeVar("PredicateT", bound=Callable[..., Any])

InState: TypeAlias = Callable[[ContextT, StateT], Iterator[str]]
OfStep: TypeAlias = Callable[..., Iterator[str]]  # of a context, a step, and what is given
Given: TypeAlias = Callable[[ContextT, StepT], Any]
OfChange: TypeAlias = Callable[[ContextT, StateT, StateT], Iterator[str]]
Goal: TypeAlias = Callable[[StateT, str], bool]
Witness: TypeAlias = Callable[[ContextT, StepT], object]  # true where it was seen
Applies: TypeAlias = Callable[[ConfigT], bool]


def _first(found: Iterator[str]) -> str | None:
    for text in found:
        return shortened(text)
    return None


_ITEMS = 20  # of a list that a text names
_BRACKET = re.compile(r"([][(){}])")


def shortened(text: str) -> str:
    """The text, in each bracket the first few items and how many more there are."""
    shown: list[str] = []
    commas: list[int] = []  # in each bracket that is open
    for piece in _BRACKET.split(text):
        more, room = 0, len(text)
        if piece in ("]", "}", ")") and commas:
            more = commas.pop() + 1 - _ITEMS
        elif commas:
            room = _ITEMS - commas[-1]
        if max(commas, default=0) < _ITEMS:
            shown += [f", … {more:,} more"] if more > 0 else []
            shown.append(",".join(piece.split(",", room)[:room]))
        if piece in ("[", "{", "("):
            commas.append(0)
        elif commas:
            commas[-1] += piece.count(",")
    return "".join(shown)


@frozen
class Rule(Generic[ConfigT, ContextT, StateT, StepT]):
    """One rule. `in_state`, `of_step` or `of_change` holds its predicate, by its kind.

    `goal`: of an `eventually` rule, whether the state is one that must come, sooner or later from
    every other, for the request with this id. `applies`: under which configurations the rule is
    meant. `given`: of a rule about steps, what its predicate takes besides context and step, which
    follows from these.
    """

    id: str
    sentence: str
    source: Source
    kind: Kind
    witness: Witness[ContextT, StepT]
    applies: Applies[ConfigT]
    in_state: InState[ContextT, StateT] | None = None
    of_step: OfStep | None = None
    given: Given[ContextT, StepT] | None = None
    of_change: OfChange[ContextT, StateT] | None = None
    goal: Goal[StateT] | None = None

    def found_in_state(self, ctx: ContextT, state: StateT) -> str | None:
        """What is wrong with the state, or None."""
        return _first(self.in_state(ctx, state)) if self.in_state else None

    def found_of_step(self, ctx: ContextT, step: StepT, *given: Any) -> str | None:
        """What is wrong with the step or with the state that it left, or None.

        `given`: what the predicate takes besides, if it is at hand.
        """
        if self.of_step:
            if self.given and not given:
                given = (self.given(ctx, step),)
            return _first(self.of_step(ctx, step, *given))
        left: Any = step.after  # of the kind that the rule is about
        return self.found_in_state(ctx, left)

    def found_between(self, ctx: ContextT, before: StateT, after: StateT) -> str | None:
        """What is wrong with how one step's end became the next one's beginning, or None."""
        return _first(self.of_change(ctx, before, after)) if self.of_change else None


AnyRule: TypeAlias = Rule[Any, Any, Any, Any]  # where rules are shown and nothing is judged


def _everywhere(_config: object) -> bool:
    return True


@define
class Registry(Generic[ConfigT, ContextT, StateT, StepT]):
    """The rules of one policy by id, in the order in which they are registered.

    `always`, `of_step`, `guard`, `between` and `eventually` make a decorator that registers the
    function and returns it as it is: the function's docstring begins with the rule's sentence. The
    witness is given to them, or by the decorator `witness` below them. Registering raises
    ValueError if the id is taken, or the sentence or the witness missing.
    """

    rules: dict[str, Rule[ConfigT, ContextT, StateT, StepT]] = field(factory=dict)
    _witnesses: dict[Callable[..., Any], Witness[ContextT, StepT]] = field(factory=dict)

    def witness(self, seen: Witness[ContextT, StepT]) -> Callable[[PredicateT], PredicateT]:
        """A step that must be reachable somewhere, for the rule that is registered above."""

        def note(predicate: PredicateT) -> PredicateT:
            self._witnesses[predicate] = seen
            return predicate

        return note

    def always(
        self,
        id_: str,
        source: Source,
        *,
        witness: Witness[ContextT, StepT] | None = None,
        applies: Applies[ConfigT] = _everywhere,
    ) -> Callable[[InState[ContextT, StateT]], InState[ContextT, StateT]]:
        """A rule about every state."""
        return self._registering("in_state", id_, source, Kind.ALWAYS, witness, applies)

    def of_step(
        self,
        id_: str,
        source: Source,
        *,
        witness: Witness[ContextT, StepT] | None = None,
        applies: Applies[ConfigT] = _everywhere,
        given: Given[ContextT, StepT] | None = None,
    ) -> Callable[[OfStep], OfStep]:
        """A rule about every step."""
        return self._registering("of_step", id_, source, Kind.STEP, witness, applies, given)

    def guard(
        self,
        id_: str,
        source: Source,
        *,
        witness: Witness[ContextT, StepT] | None = None,
        applies: Applies[ConfigT] = _everywhere,
        given: Given[ContextT, StepT] | None = None,
    ) -> Callable[[OfStep], OfStep]:
        """A rule about every step that takes or refuses what it guards; witness: it refused."""
        seen = witness or (lambda _ctx, step: step.refusal == id_)
        return self._registering("of_step", id_, source, Kind.GUARD, seen, applies, given)

    def between(
        self,
        id_: str,
        source: Source,
        *,
        witness: Witness[ContextT, StepT] | None = None,
        applies: Applies[ConfigT] = _everywhere,
    ) -> Callable[[OfChange[ContextT, StateT]], OfChange[ContextT, StateT]]:
        """A rule about what happens between two steps."""
        return self._registering("of_change", id_, source, Kind.BETWEEN, witness, applies)

    def eventually(
        self,
        id_: str,
        source: Source,
        *,
        witness: Witness[ContextT, StepT] | None = None,
        applies: Applies[ConfigT] = _everywhere,
    ) -> Callable[[Goal[StateT]], Goal[StateT]]:
        """A rule about every fair path; the function is true of the states that are the goal."""
        return self._registering("goal", id_, source, Kind.EVENTUALLY, witness, applies)

    def applicable(self, config: ConfigT) -> list[Rule[ConfigT, ContextT, StateT, StepT]]:
        """The rules that are meant under this configuration, in the order of the registry."""
        return [rule for rule in self.rules.values() if rule.applies(config)]

    def _registering(
        self,
        place: str,
        id_: str,
        source: Source,
        kind: Kind,
        witness: Witness[ContextT, StepT] | None,
        applies: Applies[ConfigT],
        given: Given[ContextT, StepT] | None = None,
    ) -> Callable[[PredicateT], PredicateT]:
        """Registers a rule with its predicate in this place of a `Rule`."""

        def register(predicate: PredicateT) -> PredicateT:
            sentence, seen = sentence_of(predicate), self._witnesses.pop(predicate, witness)
            if id_ in self.rules:
                raise ValueError(f"two rules are called {id_}")
            if not sentence:
                raise ValueError(f"{id_} says nothing: its docstring is empty")
            if seen is None:
                raise ValueError(f"{id_} has no witness: it may hold only because it never applies")
            judged: Any = {place: predicate, "given": given}
            rule = Rule(id_, sentence, source, kind, seen, applies, **judged)
            self.rules[id_] = rule
            return predicate

        return register


def sentence_of(function: Callable[..., Any]) -> str:
    """The sentence with which a docstring begins, up to the first blank line, on one line."""
    return " ".join((getdoc(function) or "").partition("\n\n")[0].split())
