"""What a rule need not look at again, on every edge of instances: it finds the same as a whole.

Arrivals, aborts and ends of loads are edges as well as scheduler steps.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from attrs import evolve

from checks.explore.instance import Instance
from checks.explore.model import OnStep, Transition
from checks.explore.policy import machine_of
from checks.explore.search import explore
from checks.registry import claims_of
from spec.core.rule import AnyRule, Kind
from spec.vllm_v1.rules import REGISTRY

LOOKING = ("spyre", "nano-vllm", "vllm-v1")  # policies whose rules look at what changed
INSTANCES = {
    f"{name}, {instance.name}": instance
    for name in LOOKING
    for instance in machine_of(name).instances
}
FAST = (  # caching and eviction, preemption, drafts, loads that come, fail or are left
    "nano-vllm, documented, eviction",
    "vllm-v1, priority",
    "vllm-v1, uncut, 0.11.2",
    "vllm-v1, eviction, 0.11.2",
    "vllm-v1, speculation",
    "vllm-v1, async load, priority",
    "vllm-v1, sync load, lost",
)


def edges_judged(instance: Instance[Any], rules: dict[str, AnyRule]) -> int:
    """On how many edges all state rules that held before find the same by the change."""
    model = machine_of(instance.config.policy).model(evolve(instance, returning=frozenset()))
    judged = 0

    def differences(state: Any, transition: Transition[Any]) -> Iterator[str]:
        nonlocal judged
        judged += 1
        after = transition.state
        for rule in rules.values():
            if rule.found_in_state(model.ctx, state) is None:
                by_change = rule.found_after(model.ctx, state, after)
                if by_change != rule.found_in_state(model.ctx, after):
                    yield f"{rule.id}: {by_change} by the change"

    same: OnStep[Any] = OnStep("same", lambda *edge: next(differences(*edge), None))
    result = explore(model, [same], keep_going=True)
    assert not [one for one in result.violations if one.rule == "same"]
    return judged


def state_rules(instance: Instance[Any]) -> dict[str, AnyRule]:
    applicable = claims_of(instance.config.policy).registry.applicable(instance.config)
    return {rule.id: rule for rule in applicable if rule.kind is Kind.ALWAYS}


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=() if one in FAST else pytest.mark.thorough) for one in INSTANCES],
)
def test_a_rule_finds_the_same_by_the_change_on_every_edge(name: str) -> None:
    instance = INSTANCES[name]

    assert edges_judged(instance, state_rules(instance)) > 10


def test_a_look_that_sees_too_little_is_noticed() -> None:
    instance = INSTANCES["vllm-v1, eviction, 0.11.2"]
    rule = evolve(
        REGISTRY["V1-SEQ-1"], in_state=lambda _ctx, state: iter(["broken"] * bool(state.running))
    )
    blind = evolve(rule, look=lambda _ctx, _before, _after: None)

    assert edges_judged(instance, {"whole": rule}) > 20
    with pytest.raises(AssertionError):
        edges_judged(instance, {"blind": blind})
