"""The rules of a registry in the explorer's terms; no rule is defined here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from attrs import field, frozen

from checks.explore.environment import MachineModel
from checks.explore.model import Always, Eventually, OnStep, Transition, Witness
from checks.explore.returning import Forgotten
from checks.registry import claims_of
from spec.core.records import SomeContext
from spec.core.rule import AnyRule, ConfigT, ContextT, Kind, Rule, StateT, StepT

KnownT = TypeVar("KnownT", bound=SomeContext)


@frozen
class Properties(Generic[StateT]):
    """What can be asked of an instance: what must never happen, what must come, what is seen."""

    safety: Sequence[Always[StateT] | OnStep[StateT]] = ()
    eventually: Sequence[Eventually[StateT]] = ()
    witnesses: Sequence[Witness[StateT]] = ()
    rules: Sequence[AnyRule] = field(default=(), repr=False)

    @property
    def all(self) -> list[Always[StateT] | OnStep[StateT] | Eventually[StateT]]:
        """Everything that can be violated."""
        return [*self.safety, *self.eventually]


def properties_of(model: MachineModel[Any, StateT]) -> Properties[StateT]:
    """The rules that apply to the instance of a model, in the explorer's terms."""
    config = model.instance.config
    claims = claims_of(config.policy)
    rules = claims.registry.applicable(config)
    return properties_of_rules(rules, model.ctx, claims.step, model.places)


def properties_of_rules(
    rules: Iterable[Rule[ConfigT, KnownT, StateT, StepT]],
    ctx: KnownT,
    step: type[StepT],
    places: Callable[[StateT], Mapping[str, int]] | None = None,
) -> Properties[StateT]:
    """The rules, judged in states and on edges; the record of a scheduler step is a `step`.

    `places`: of requests that the model does not distinguish, see `Eventually`.
    State rules come first, so that a step that breaks both kinds is reported by its state.
    """
    listed = tuple(rules)
    states = [_always(rule, ctx) for rule in listed if rule.kind is Kind.ALWAYS]
    steps = [_on_step(rule, ctx, step) for rule in listed if rule.of_step or rule.of_change]
    return Properties(
        safety=(*states, *steps),
        eventually=tuple(
            _eventually(rule, one, places)
            for rule in listed
            if rule.kind is Kind.EVENTUALLY
            for one in ctx.requests
        ),
        witnesses=tuple(_witness(rule, ctx, step) for rule in listed),
        rules=listed,
    )


def _always(rule: Rule[ConfigT, ContextT, StateT, StepT], ctx: ContextT) -> Always[StateT]:
    return Always(rule.id, lambda state: rule.found_in_state(ctx, state))


def _on_step(
    rule: Rule[ConfigT, ContextT, StateT, StepT], ctx: ContextT, step: type[StepT]
) -> OnStep[StateT]:
    def between(before: StateT, edge: Transition[StateT]) -> str | None:
        if isinstance(edge.record, step):
            return None
        known = edge.record.state if isinstance(edge.record, Forgotten) else before
        return rule.found_between(ctx, known, edge.state)

    def of_step(_before: StateT, edge: Transition[StateT]) -> str | None:
        return rule.found_of_step(ctx, edge.record)

    return OnStep(rule.id, of_step, of=step) if rule.of_step else OnStep(rule.id, between)


def _eventually(
    rule: Rule[ConfigT, ContextT, StateT, StepT],
    request_id: str,
    places: Callable[[StateT], Mapping[str, int]] | None,
) -> Eventually[StateT]:
    goal = rule.goal
    assert goal is not None
    return Eventually(
        rule.id,
        trigger=lambda _: True,
        goal=lambda state: goal(state, request_id),
        of=f"request {request_id}",
        request=request_id,
        places=places,
    )


def _witness(
    rule: Rule[ConfigT, ContextT, StateT, StepT], ctx: ContextT, step: type[StepT]
) -> Witness[StateT]:
    return Witness(rule.id, lambda _before, edge: rule.witness(ctx, edge.record), of=step)
