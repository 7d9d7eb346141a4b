"""The rules of a registry in the explorer's terms; no rule is defined here."""

from collections.abc import Iterable
from typing import Generic, TypeVar

from attrs import field, frozen

from checks.explore.model import Always, Eventually, OnStep, Transition, Witness
from spec.core.rule import AnyRule, At, By, Conf, Ctx, Kind, Rule

State = TypeVar("State")


@frozen
class Properties(Generic[State]):
    """What can be asked of an instance: what must never happen, what must come, what is seen."""

    safety: tuple[Always[State] | OnStep[State], ...]
    eventually: tuple[Eventually[State], ...]
    witnesses: tuple[Witness[State], ...]
    rules: tuple[AnyRule, ...] = field(repr=False)

    @property
    def all(self) -> list[Always[State] | OnStep[State] | Eventually[State]]:
        """Everything that can be violated."""
        return [*self.safety, *self.eventually]


def properties_of_rules(
    rules: Iterable[Rule[Conf, Ctx, At, By]], ctx: Ctx, step: type[By]
) -> Properties[At]:
    """The rules, judged in states and on edges; the record of a scheduler step is a `step`.

    State rules come first, so that a step that breaks both kinds is told by its state.
    """
    listed = tuple(rules)
    states = [_always(rule, ctx) for rule in listed if rule.kind is Kind.ALWAYS]
    steps = [_on_step(rule, ctx, step) for rule in listed if rule.of_step or rule.of_change]
    return Properties(
        safety=(*states, *steps),
        eventually=tuple(_eventually(rule) for rule in listed if rule.kind is Kind.EVENTUALLY),
        witnesses=tuple(_witness(rule, ctx, step) for rule in listed),
        rules=listed,
    )


def _always(rule: Rule[Conf, Ctx, At, By], ctx: Ctx) -> Always[At]:
    return Always(rule.id, lambda state: rule.found_in_state(ctx, state))


def _on_step(rule: Rule[Conf, Ctx, At, By], ctx: Ctx, step: type[By]) -> OnStep[At]:
    def holds(before: At, edge: Transition[At]) -> str | None:
        if isinstance(edge.record, step):
            return rule.found_of_step(ctx, edge.record) if rule.of_step else None
        return rule.found_between(ctx, before, edge.state)

    return OnStep(rule.id, holds)


def _eventually(rule: Rule[Conf, Ctx, At, By]) -> Eventually[At]:
    goal = rule.goal
    assert goal is not None
    return Eventually(rule.id, lambda state: not goal(state), goal)


def _witness(rule: Rule[Conf, Ctx, At, By], ctx: Ctx, step: type[By]) -> Witness[At]:
    def seen(_before: At, edge: Transition[At]) -> bool:
        return isinstance(edge.record, step) and rule.witness(ctx, edge.record)

    return Witness(rule.id, seen)
