"""The fuzzer finds planted faults of the engine, each within a stated number of episodes."""

from collections import Counter

import pytest

from tests.checks.harness.cases import hunt
from tests.checks.policies.engine_faults import EngineFault, hunt_fault
from tests.checks.policies.vllm_v1.engine_faults import ENGINE, ENGINE_FAULTS

EPISODES = 20  # within which a planted fault is found
RARE = {  # found later than in the first few, and within how many
    "first gives way": 50,
    "goes on behind itself": 50,
    "answer lost with preemption": 50,
    "blind to its own step": 50,
    "lookup not repeated": 50,
    "preempted waits last": 100,
    "losses not noticed": 50,
    "blocks in no order": 100,
    "nothing spoken for": 100,
    "whole prompt not reserved": 100,
    "blocks not kept while they load": 150,
    "last token counts as loaded": 250,
    "priorities not looked at": 250,
    "victim is not refunded": 250,
}


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=pytest.mark.thorough if fault.name in RARE else ())
        for fault in ENGINE_FAULTS
    ],
)
def test_planted_fault_of_the_engine_is_found(fault: EngineFault) -> None:
    found = hunt_fault(ENGINE, fault, RARE.get(fault.name, EPISODES))

    assert found.finding is not None, fault.sentence


def test_without_a_fault_nothing_is_found() -> None:
    assert hunt(ENGINE, 20).finding is None


def test_there_are_faults_of_every_kind() -> None:
    areas = Counter(fault.area for fault in ENGINE_FAULTS)

    assert set(areas) == {
        *("budget", "preemption", "blocks", "caching", "order", "speculation", "loading"),
        "accounting",
    }
    assert min(areas.values()) >= 3
    names = {fault.name for fault in ENGINE_FAULTS}
    assert len(names) == len(ENGINE_FAULTS)
    assert names >= RARE.keys()
