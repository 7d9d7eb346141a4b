"""The fuzzer finds planted faults of the engine, each within a stated number of episodes."""

from collections import Counter

import pytest

from tests.checks.harness.cases import hunt
from tests.checks.policies.engine_faults import EngineFault, hunt_fault
from tests.checks.policies.nano_vllm.engine_faults import ENGINE, ENGINE_FAULTS

EPISODES = 50  # within which every planted fault is found
RARE = {  # found later than in the first few
    *("budget one too high", "step not counted", "cached tokens counted"),
    *("shared blocks asked for again", "planned blocks are not held", "blind to its own step"),
    *("handed out and found", "newly cached not noticed"),
}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=pytest.mark.thorough if fault.name in RARE else ())
        for fault in ENGINE_FAULTS
    ],
)
def test_planted_fault_of_the_engine_is_found(fault: EngineFault) -> None:
    found = hunt_fault(ENGINE, fault, EPISODES)

    assert found.finding is not None, fault.sentence


def test_without_a_fault_nothing_is_found() -> None:
    assert hunt(ENGINE, 20).finding is None


def test_there_are_faults_of_every_kind() -> None:
    areas = Counter(fault.area for fault in ENGINE_FAULTS)

    assert set(areas) == {"admission", "blocks", "caching", "order", "accounting"}
    assert min(areas.values()) >= 3
    names = {fault.name for fault in ENGINE_FAULTS}
    assert len(names) == len(ENGINE_FAULTS)
    assert names >= RARE
