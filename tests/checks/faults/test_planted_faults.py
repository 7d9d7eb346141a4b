"""Every rule can fail: wrong versions of each transition, and the rules that notice them."""

from collections.abc import Iterator, Set
from inspect import getmembers, isfunction
from types import ModuleType
from typing import Any

import pytest
from attrs import evolve

from checks.explore.examine import MACHINE_ERROR
from checks.explore.instance import Instance
from checks.explore.policy import machine_of
from checks.explore.properties import properties_of
from checks.explore.search import explore
from checks.registry import claims_of
from reference.core import block_pool
from reference.nano_vllm import block_manager
from reference.nano_vllm import transitions as of_nano_vllm
from reference.spyre import transitions as of_spyre
from reference.vllm_v1 import machine, step
from reference.vllm_v1 import transitions as of_vllm_v1
from spec.core.rule import Kind
from spec.vllm_v1 import requests as vllm_v1_requests
from tests.checks.faults import nano_vllm, spyre, vllm_v0, vllm_v1
from tests.checks.faults.patches import always
from tests.checks.faults.planting import Fault, FaultTable, Planted, recorded_refutations
from tests.checks.faults.vllm_v0.table import PASSED

_TABLES = (spyre.FAULTS, nano_vllm.FAULTS, vllm_v0.FAULTS, vllm_v1.FAULTS)
TABLES = {table.policy: table for table in _TABLES}

_SLOW = pytest.mark.thorough
each_table = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)


def planted_faults() -> Iterator[Any]:
    """Every fault of every table; the fast tier has the first fault of each rule."""
    for policy, table in TABLES.items():
        named: set[str] = set()
        for fault in table:
            is_first = not named.issuperset(fault.rules)
            named.update(fault.rules)
            marks = () if is_first else pytest.mark.thorough
            yield pytest.param(table, fault, id=f"{policy}: {fault.name}", marks=marks)


@pytest.mark.parametrize(("table", "fault"), [*planted_faults()])
def test_planted_fault_breaks_the_rule_that_names_it_and_no_unrelated_one(
    table: FaultTable, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault.plant(monkeypatch)

    assert table.broken_first(table.instances[fault.instance]) == set(fault.rules), fault.sentence


@pytest.mark.parametrize(
    ("table", "name"),
    [
        pytest.param(table, name, id=f"{policy}: {name}", marks=_SLOW if name == PASSED else ())
        for policy, table in TABLES.items()
        for name in sorted({fault.instance for fault in table})
    ],
)
def test_without_a_fault_none_of_these_rules_is_broken(table: FaultTable, name: str) -> None:
    sought = {rule for fault in table if fault.instance == name for rule in fault.rules}

    broken = broken_without_a_fault(table, table.instances[name])

    assert broken <= recorded_refutations(table.instances[name])
    assert broken.isdisjoint({*sought, MACHINE_ERROR})


def broken_without_a_fault(table: FaultTable, instance: Instance[Any]) -> Set[str]:
    """The rules that an instance refutes: of a default one, as on record.

    That exploring those gives what is on record is shown by `tests/checks/test_evidence.py`.
    """
    if instance in machine_of(table.policy).instances:
        return recorded_refutations(instance)
    model = machine_of(table.policy).model(instance)
    result = explore(model, properties_of(model).all, keep_going=True)
    assert result.stopped_by is None
    return {violation.rule for violation in result.violations}


@pytest.mark.parametrize(
    ("name", "rule"), [("idle although pending", "LIF-6"), ("idle with the paused", "SPY-PAU-5")]
)
def test_fault_that_starves_a_request_is_refuted_by_an_endless_run(
    name: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fault,) = (fault for fault in spyre.FAULTS if fault.name == name)
    fault.plant(monkeypatch)

    assert rule in endless(spyre.FAULTS, fault.instance)


def test_a_scheduler_that_admits_no_request_is_refuted_by_an_endless_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step, "schedule_waiting", lambda _ctx, plan: plan)

    assert "V1-PRG-5" in endless(vllm_v1.FAULTS, "lookahead")


def endless(table: FaultTable, name: str) -> set[str]:
    """The rules that runs of an instance refute which never end."""
    model = machine_of(table.policy).model(table.instances[name])
    result = explore(model, properties_of(model).eventually, keep_going=True)
    return {
        violation.rule
        for violation in result.violations
        if violation.counterexample.loop_from is not None
    }


TOO_SMALL = {
    "no request is refused": (machine, "refuse_unservable", lambda _right, *_given: None),
    "a request is let in by its prompt": (
        vllm_v1_requests,
        "largest_end",
        lambda right, prompt_len, _max_tokens, *more: right(prompt_len, 1, *more),
    ),
    "drafts and lookahead are left out": (
        vllm_v1_requests,
        "largest_end",
        lambda right, *given: right(*given[:2], 0, 0, given[-1]),
    ),
    "one block is enough for each": (vllm_v1_requests, "blocks_alone", always(1)),
}


@pytest.mark.parametrize("wrong", TOO_SMALL.values(), ids=TOO_SMALL)
def test_a_request_larger_than_the_pool_is_noticed_where_it_is_not_refused(
    wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Planted("too small", "", *wrong).plant(monkeypatch)
    lookahead = vllm_v1.FAULTS.instances["lookahead"]
    requests = (evolve(lookahead.requests[0], max_tokens=3),)
    config = evolve(lookahead.config, num_blocks=3, num_lookahead_tokens=2)
    tiny = evolve(lookahead, name="tiny", config=config, requests=requests)

    assert "V1-LIF-7" in vllm_v1.FAULTS.broken_first(tiny)


def public_functions(*modules: ModuleType) -> set[str]:
    return {
        name
        for module in modules
        for name, function in getmembers(module, isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }


def test_every_transition_has_a_planted_fault() -> None:
    faulty = {name: {fault.transition for fault in table} for name, table in TABLES.items()}
    helpers = {"queued", "rank", "without", "replaced", "valid_tokens"}

    assert faulty["spyre"] >= public_functions(of_spyre, block_pool) | {"jump_tkv"}
    assert faulty["nano-vllm"] == (
        public_functions(of_nano_vllm, block_manager) | {"schedule", "step", "graph"}
    )
    assert faulty["vllm-v1"] >= public_functions(of_vllm_v1) - helpers


# Of Spyre, no configuration with other chunks can be made. Of vLLM V1, a request larger than the
# pool has a test of its own, above.
CANNOT_BE_BROKEN_FIRST = {"SPY-KEY-1", "V1-LIF-7"}
# Of vLLM V0 some rules fall together with others that these faults break first; each of them falls
# on a wrong step of its own in tests/spec/test_vllm_v0_rules.py.
CANNOT_BE_BROKEN_FIRST |= {"V0-BLK-2", "V0-CHK-7", "V0-ORD-2", "V0-PFX-1", "V0-PRG-5", "V0-PRI-7"}
CANNOT_BE_BROKEN_FIRST |= {"V0-SEQ-5", "V0-SWP-12"}


@each_table
def test_every_rule_notices_a_planted_fault(table: FaultTable) -> None:
    rules = claims_of(table.policy).registry.rules
    noticed = {rule.removeprefix("guard ") for fault in table for rule in fault.rules}
    refuted = {
        rule
        for instance in machine_of(table.policy).instances
        for rule in recorded_refutations(instance)
    }
    on_endless_runs = {rule.id for rule in rules.values() if rule.kind is Kind.EVENTUALLY}

    assert rules.keys() - noticed - refuted - on_endless_runs <= CANNOT_BE_BROKEN_FIRST


@each_table
def test_no_two_planted_faults_share_a_name(table: FaultTable) -> None:
    assert len({fault.name for fault in table}) == len(table)
