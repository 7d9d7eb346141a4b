"""Judged by what changed, the steps of an engine break the rules that they break as a whole.

Faults are planted in the engine and it runs without a device, which would stop it first. The parts
that its states share are as small as they can be.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from attrs import evolve

from checks.harness.campaign import Plan
from checks.harness.case import Case
from checks.harness.judging import Judge, judgeable
from checks.harness.policy import Own, evidence_of
from checks.harness.serving import scheduler_for, served_by
from checks.harness.system import REFERENCE
from checks.policies.nano_vllm import engine as nano_vllm
from checks.policies.spyre import engine as spyre
from checks.policies.vllm_v1 import engine as vllm_v1
from spec.core.rule import AnyRule
from spec.core.sharing import FrozenMap
from spec.spyre.variants import Admission
from tests.checks.policies.engine_faults import EngineFault
from tests.checks.policies.nano_vllm import engine_faults as of_nano_vllm
from tests.checks.policies.spyre.engine_faults import ENGINE_FAULTS
from tests.checks.policies.vllm_v1 import engine_faults as of_vllm_v1

PLAN, NANO_VLLM, VLLM_V1 = (Plan(Own(name, "engine")) for name in ("spyre", "nano-vllm", "vllm-v1"))
ENGINES = {"spyre": spyre, "nano-vllm": nano_vllm, "vllm-v1": vllm_v1}
Breach = tuple[int, set[str]]  # the first step that broke a rule, and all the rules that it broke


def steps_with_fault(case: Case) -> Iterator[Any]:
    """Until all have left, the engine goes round in circles, or a fault makes it raise."""
    engine: Any = ENGINES[case.config.policy]
    steps = islice(served_by(engine.without_device(case), case), 300)
    while True:
        try:
            yield next(steps)
        except Exception:  # the end, or whatever a fault leads to
            return


def breach_by_change(ctx: Any, rules: list[AnyRule], steps: list[Any]) -> Breach | None:
    by_change = Judge(ctx, rules)
    found = ((step.index, by_change.observe(step)) for step in steps)
    first = next(((index, broken) for index, broken in found if broken), None)
    return first and (first[0], {one.rule.id for one in first[1]})


def breach_as_a_whole(ctx: Any, rules: list[AnyRule], steps: list[Any]) -> Breach | None:
    left: Any = None
    for step in map(whole, steps):
        broken = {rule.id for rule in rules if is_broken(rule, ctx, left, step)}
        if broken:
            return step.index, broken
        left = step.after
    return None


def whole(step: Any) -> Any:
    """The step with states that share nothing and do not know what changed."""
    states = {
        name: unshared(getattr(step, name))
        for name in ("before", "planned", "after")
        if hasattr(step, name)
    }
    return evolve(step, **states)


def unshared(state: Any) -> Any:
    pool = evolve(
        state.pool,
        free=tuple(state.pool.free),
        references=FrozenMap(state.pool.references),
        keys=FrozenMap(state.pool.keys),
        cached=FrozenMap(state.pool.cached),
    )
    return evolve(state, pool=pool)


def is_broken(rule: AnyRule, ctx: Any, left: Any, step: Any) -> bool:
    in_states = [rule.found_in_state(ctx, state) for state in (step.before, step.after)]
    of_step = rule.found_of_step(ctx, step) if rule.of_step else None
    between = left and rule.found_between(ctx, left, step.before)
    return any(found is not None for found in (*in_states, of_step, between))


def _nothing(_rule: str, _config: Any) -> str | None:
    return None


def breaches(
    count: int, plan: Plan = PLAN, *, without_expected: bool = False
) -> list[Breach | None]:
    """The first breach of each of the first cases, on which both ways of judging agree.

    `without_expected`: not of rules that are known not to hold.
    """
    found = []
    for episode in range(count):
        case = plan.case(episode)
        policy = case.config.policy
        reference: Any = scheduler_for(REFERENCE, case)
        ctx = reference.machine.ctx
        expected = evidence_of(policy).expected_reason if without_expected else _nothing
        rules = [rule for rule in judgeable(case.config) if not expected(rule.id, case.config)]
        steps = list(steps_with_fault(case))
        by_change = breach_by_change(ctx, rules, steps)
        assert by_change == breach_as_a_whole(ctx, rules, steps), episode
        found.append(by_change)
    return found


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.core.blocks._RUN", 2)
    monkeypatch.setattr("spec.core.sharing._CHANGES", 100)


NOTICED = {  # planted faults, and rules of each kind of look that notice them
    "table head first": {"BLK-4"},
    "plain blocks last": {"BLK-4", "BLK-10"},
    "keys without answers": {"SPY-PFX-2"},
    "answers not cached": {"SPY-PFX-8"},
    "promised for ever": {"SPY-RES-2"},
    "volume never refuses": {"SPY-VOL-4"},
}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(one, id=one.name, marks=() if one.name in NOTICED else pytest.mark.thorough)
        for one in ENGINE_FAULTS
    ],
)
def test_a_planted_fault_breaks_the_same_rules_at_the_same_step(
    fault: EngineFault, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault.plant(monkeypatch)

    rules = {rule for breach in breaches(20) if breach is not None for rule in breach[1]}

    assert rules >= NOTICED.get(fault.name, set())


ODD = {"block_size": 4, "max_model_len": 15, "admission": Admission.EXACT}


def test_without_a_fault_only_odd_model_lengths_break_a_rule() -> None:
    odd = Plan(Own("spyre", "engine"), pinned=ODD)
    found = [one[1] for one in breaches(10, odd) if one is not None]

    assert found
    assert all(rules == {"SPY-LEN-1"} for rules in found)


NOTED = {  # planted faults of its engine, and rules of each kind of look that notice them
    "plain blocks first": {"NANO-BLK-5"},
    "preempted keeps its blocks": {"NANO-BLK-2"},
    "boundary one off": {"NANO-BLK-4"},
    "answers not cached": {"NANO-PFX-1"},
    "keys without tokens": {"NANO-PFX-2"},
    "preempted waits last": {"NANO-ADM-7"},
    "answer lost with preemption": {"NANO-PRE-5"},
}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(one, id=one.name, marks=() if one.name in NOTED else pytest.mark.thorough)
        for one in of_nano_vllm.ENGINE_FAULTS
    ],
)
def test_a_planted_fault_of_nano_vllm_breaks_the_same_rules_at_the_same_step(
    fault: EngineFault, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault.plant(monkeypatch)

    found = breaches(12, NANO_VLLM, without_expected=True)
    rules = {rule for one in found if one is not None for rule in one[1]}

    assert rules >= NOTED.get(fault.name, set())


def test_without_a_fault_nano_vllm_breaks_only_rules_that_are_known_not_to_hold() -> None:
    assert any(breaches(10, NANO_VLLM))
    assert not any(breaches(30, NANO_VLLM, without_expected=True))


SEEN = {  # planted faults of vLLM V1's engine, and rules of each kind of look that notice them
    "goes on behind itself": {"V1-KV-2", "V1-OUT-2"},
    "preempted waits last": {"V1-PRE-3"},
    "released head first": {"V1-KV-8"},
    "slots beyond the model": {"V1-KV-7"},
    "whole prompt hit": {"V1-PRG-1"},
    "keys without tokens": {"V1-KV-11", "V1-KV-12"},
    "priorities not sorted": {"V1-LIF-3", "V1-ORD-3"},
}
NOTICED_WITHIN = {"preempted waits last": 120, "priorities not sorted": 30}  # cases, else 12


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(one, id=one.name, marks=() if one.name in SEEN else pytest.mark.thorough)
        for one in of_vllm_v1.ENGINE_FAULTS
    ],
)
def test_a_planted_fault_of_vllm_v1_breaks_the_same_rules_at_the_same_step(
    fault: EngineFault, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault.plant(monkeypatch)

    found = breaches(NOTICED_WITHIN.get(fault.name, 12), VLLM_V1, without_expected=True)
    rules = {rule for one in found if one is not None for rule in one[1]}

    assert rules >= SEEN.get(fault.name, set())


def test_without_a_fault_vllm_v1_breaks_only_rules_that_are_known_not_to_hold() -> None:
    assert not any(breaches(30, VLLM_V1, without_expected=True))
