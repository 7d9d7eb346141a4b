"""The rules of a registry as properties and witnesses of the explorer; it defines no rule."""

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
    """The properties and witnesses for an instance, and the rules that they come from."""

    safety: Sequence[Always[StateT] | OnStep[StateT]] = ()
    eventually: Sequence[Eventually[StateT]] = ()
    witnesses: Sequence[Witness[StateT]] = ()
    rules: Sequence[AnyRule] = field(default=(), repr=False)

    @property
    def all(self) -> list[Always[StateT] | OnStep[StateT] | Eventually[StateT]]:
        """All properties, safety first."""
        return [*self.safety, *self.eventually]


def properties_of(model: MachineModel[Any, StateT]) -> Properties[StateT]:
    """The rules that apply to a model's instance, as properties and witnesses."""
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
    """The rules as properties of states and edges; `step`: the class of the records of steps.

    `places`: places of the requests that the model does not distinguish, see `Eventually`.
    State rules come first, so that they report a step that breaks rules of both kinds.
    """
    listed = tuple(rules)
    states = [_always(rule, ctx) for rule in listed if rule.kind is Kind.ALWAYS]
    steps = [_on_step(rule, ctx, step) for rule in listed if rule.of_step or rule.of_change]
    return Properties(
        safety=(*states, *steps),
        eventually=tuple(
            _eventually(rule, request_id, places)
            for rule in listed
            if rule.kind is Kind.EVENTUALLY
            for request_id in ctx.requests
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
        start = edge.record.state if isinstance(edge.record, Forgotten) else before
        return rule.found_between(ctx, start, edge.state)

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
