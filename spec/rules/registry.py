"""The registry: every rule once, with id, sentence, source, predicate and witness.

A predicate yields what it found wrong, a line each, and nothing where the rule holds. It is
given only what anybody can observe of a scheduler, so the same rule judges the reference, the
engine, a recorded trace and a released scheduler. A witness is a step that must be reachable
somewhere, so that no rule holds only because it never applies.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from attrs import frozen

from spec.config import Config
from spec.records import Context, Step
from spec.rules.changes import Change, change_between
from spec.state import State


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


StatePredicate = Callable[[Context, State], Iterator[str]]
StepPredicate = Callable[[Context, Step], Iterator[str]]
ChangePredicate = Callable[[Context, State, State], Iterator[str]]
Goal = Callable[[State], bool]
Witness = Callable[[Context, Step], bool]
Applies = Callable[[Config], bool]


Look = Callable[[Context, Change], State | None]


def _whole(_ctx: Context, change: Change) -> State | None:
    return change.after


def each_request(_ctx: Context, change: Change) -> State | None:
    """Look of rules that judge each request by itself, or count what only the admitted have."""
    return change.requests


def changed_pool(_ctx: Context, change: Change) -> State | None:
    """Look of rules about the blocks and contents of the pool, each by itself."""
    return None if change.before.pool is change.after.pool else change.pool


@frozen
class Rule:
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
    witness: Witness
    applies: Applies
    look: Look = _whole
    in_state: StatePredicate | None = None
    of_step: StepPredicate | None = None
    of_change: ChangePredicate | None = None
    goal: Goal | None = None

    def found_in_state(self, ctx: Context, state: State) -> str | None:
        """What is wrong with the state, or None."""
        return next(self.in_state(ctx, state), None) if self.in_state else None

    def found_of_step(self, ctx: Context, step: Step) -> str | None:
        """What is wrong with the step or with the state that it left, or None."""
        if self.of_step:
            return next(self.of_step(ctx, step), None)
        return self.found_after(ctx, step.before, step.after)

    def found_after(self, ctx: Context, before: State, after: State) -> str | None:
        """What is wrong with the state `after`, where the rule held `before`, or None."""
        if before is after or self.in_state is None:
            return None
        if not isinstance(after, State):  # a stand-in, which cannot be reduced
            return self.found_in_state(ctx, after)
        seen = self.look(ctx, change_between(before, after))
        found = None if seen is None else self.found_in_state(ctx, seen)
        return found and (self.found_in_state(ctx, after) or found)  # told of the whole state

    def found_between(self, ctx: Context, before: State, after: State) -> str | None:
        """What is wrong with how one step's end became the next one's beginning, or None."""
        if self.of_change is None or before is after or before == after:
            return None
        return next(self.of_change(ctx, before, after), None)


REGISTRY: dict[str, Rule] = {}


def _add(rule: Rule) -> None:
    if rule.id in REGISTRY:
        raise ValueError(f"two rules are called {rule.id}")
    REGISTRY[rule.id] = rule


def _everywhere(_config: Config) -> bool:
    return True


def always(
    id_: str,
    sentence: str,
    source: Source,
    *,
    witness: Witness,
    applies: Applies = _everywhere,
    look: Look = _whole,
) -> Callable[[StatePredicate], StatePredicate]:
    """Register the decorated predicate as a rule about every state."""

    def register(predicate: StatePredicate) -> StatePredicate:
        _add(Rule(id_, sentence, source, Kind.ALWAYS, witness, applies, look, predicate))
        return predicate

    return register


def of_step(
    id_: str,
    sentence: str,
    source: Source,
    *,
    witness: Witness,
    applies: Applies = _everywhere,
    kind: Kind = Kind.STEP,
) -> Callable[[StepPredicate], StepPredicate]:
    """Register the decorated predicate as a rule about every step (or as a guard)."""

    def register(predicate: StepPredicate) -> StepPredicate:
        _add(Rule(id_, sentence, source, kind, witness, applies, of_step=predicate))
        return predicate

    return register


def between(
    id_: str, sentence: str, source: Source, *, witness: Witness, applies: Applies = _everywhere
) -> Callable[[ChangePredicate], ChangePredicate]:
    """Register the decorated predicate as a rule about what happens between two steps."""

    def register(predicate: ChangePredicate) -> ChangePredicate:
        _add(Rule(id_, sentence, source, Kind.BETWEEN, witness, applies, of_change=predicate))
        return predicate

    return register


def eventually(
    id_: str, sentence: str, source: Source, *, witness: Witness, applies: Applies = _everywhere
) -> Callable[[Goal], Goal]:
    """Register the decorated goal as a rule about every fair path."""

    def register(goal: Goal) -> Goal:
        _add(Rule(id_, sentence, source, Kind.EVENTUALLY, witness, applies, goal=goal))
        return goal

    return register


def applicable(config: Config) -> list[Rule]:
    """The rules that are meant under this configuration, in the order of the registry."""
    return [rule for rule in REGISTRY.values() if rule.applies(config)]


def judge(rules: Iterable[Rule], ctx: Context, step: Step) -> Iterator[tuple[Rule, str]]:
    """Every rule that a step breaks, with what was found."""
    for rule in rules:
        found = rule.found_of_step(ctx, step)
        if found is not None:
            yield rule, found
