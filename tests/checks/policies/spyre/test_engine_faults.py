"""The fuzzer finds planted faults of the engine, each within a stated number of episodes."""

from collections import Counter

import pytest

from tests.checks.harness.cases import ENGINE, hunt
from tests.checks.policies.engine_faults import EngineFault
from tests.checks.policies.spyre.engine_faults import ENGINE_FAULTS, hunt_engine_fault

EPISODES = 100  # within which every planted fault is found, but for those that are rare
RARE = {
    "shapes refused too soon": 1_500,  # many that wait, one of which just reaches the limit
    "not back in line": 500,  # preempted while the cohort waits, then one of the next comes first
}

FAST = {
    *("volume never refuses", "model length not asked", "promises forgotten", "nothing promised"),
    *("a column too many", "tkv of the longest", "newcomer not noticed", "departure not noticed"),
    *("table head first", "released head first", "evictions forgotten", "last block missed"),
    *("keys without answers", "keys without tokens", "joins at the back", "none overtakes"),
    *("widest first", "never closed", "not back in line", "line without end"),
    *("promise not taken back", "tokens generated not counted"),
}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=() if fault.name in FAST else pytest.mark.thorough)
        for fault in ENGINE_FAULTS
    ],
)
def test_planted_fault_of_the_engine_is_found(fault: EngineFault) -> None:
    found = hunt_engine_fault(fault, RARE.get(fault.name, EPISODES))

    assert found.finding is not None, fault.sentence


def test_without_a_fault_nothing_is_found() -> None:
    assert hunt(ENGINE, 20).finding is None


def test_there_are_faults_of_every_kind() -> None:
    areas = Counter(fault.area for fault in ENGINE_FAULTS)

    assert set(areas) == {
        *("admission", "padding", "jumps", "blocks", "caching", "order", "accounting")
    }
    assert len(ENGINE_FAULTS) >= 25
    assert len({fault.name for fault in ENGINE_FAULTS}) == len(ENGINE_FAULTS)
    assert {fault.name for fault in ENGINE_FAULTS} >= FAST
