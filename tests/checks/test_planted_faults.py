"""Every rule can fail: wrong versions of each transition, and the rules that notice them."""

from inspect import getmembers, isfunction

import pytest

from checks.explore import MACHINE_ERROR, explore
from checks.policies.spyre.policy import SPYRE
from reference.core import block_pool
from reference.spyre import transitions
from spec.spyre.rules import REGISTRY, Kind
from tests.checks.faults import FAULTS, INSTANCES
from tests.checks.planting import Fault, broken_first

BY_NAME = {fault.name: fault for fault in FAULTS}

# No configuration with other chunks can be made. Who was admitted into a free slot finds one in
# the batch: a fault would have to break SPY-ADM-1 or SPY-PAU-4 first.
CANNOT_BE_BROKEN_FIRST = {"SPY-KEY-1", "SPY-ADM-3"}


@pytest.mark.parametrize("fault", [pytest.param(one, id=one.name) for one in FAULTS])
def test_planted_fault_breaks_the_rule_that_names_it_and_no_unrelated_one(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault.plant(monkeypatch)
    model = SPYRE.model(INSTANCES[fault.instance])

    assert broken_first(model, SPYRE.properties_of(model).all) == set(fault.rules), fault.sentence


@pytest.mark.parametrize("name", sorted({fault.instance for fault in FAULTS}))
def test_without_a_fault_none_of_these_rules_is_broken(name: str) -> None:
    model = SPYRE.model(INSTANCES[name])
    looked_for = {rule for fault in FAULTS if fault.instance == name for rule in fault.rules}

    result = explore(model, SPYRE.properties_of(model).all, keep_going=True)

    assert result.stopped_by is None
    assert {violation.rule for violation in result.violations}.isdisjoint(
        {*looked_for, MACHINE_ERROR}
    )


@pytest.mark.parametrize(
    ("name", "rule"),
    [("idle although pending", "LIF-6"), ("idle with the paused", "SPY-PAU-5")],
)
def test_fault_that_starves_somebody_is_refuted_by_an_endless_run(
    name: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = BY_NAME[name]
    fault.plant(monkeypatch)
    model = SPYRE.model(INSTANCES[fault.instance])

    result = explore(model, SPYRE.properties_of(model).eventually, keep_going=True)

    refuted = {one.rule: one.counterexample.loop_from for one in result.violations}
    assert refuted[rule] is not None


def test_every_transition_has_a_planted_fault() -> None:
    machines = [
        name
        for module in (transitions, block_pool)
        for name, function in getmembers(module, isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    ]

    assert {*machines, "jump_tkv"} == {fault.transition for fault in FAULTS}


def test_every_rule_notices_a_planted_fault() -> None:
    noticed = {rule for fault in FAULTS for rule in fault.rules}
    on_endless_runs = {rule.id for rule in REGISTRY.values() if rule.kind is Kind.EVENTUALLY}

    assert REGISTRY.keys() - noticed == CANNOT_BE_BROKEN_FIRST | on_endless_runs


def test_no_two_planted_faults_share_a_name() -> None:
    assert len(BY_NAME) == len(FAULTS)
