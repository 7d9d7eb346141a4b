"""The fuzzer finds every planted fault of every engine, each within a stated number of episodes."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import pytest

from checks.harness.policy import system_of
from tests.checks.policies.engine_faults import EngineFault, hunt_fault
from tests.checks.policies.nano_vllm.engine_faults import ENGINE_FAULTS as NANO_VLLM_FAULTS
from tests.checks.policies.spyre.engine_faults import ENGINE_FAULTS as SPYRE_FAULTS
from tests.checks.policies.vllm_v1.engine_faults import ENGINE_FAULTS as VLLM_V1_FAULTS


class Table(NamedTuple):
    """An engine's faults, found within `episodes`, or `rare`; `slow` ones are thorough tests."""

    faults: Sequence[EngineFault]
    areas: str
    episodes: int
    rare: Mapping[str, int]
    slow: Collection[str]


SPYRE_RARE = {
    "shapes refused too soon": 3_000,  # many that wait, one of which just reaches the limit
    "not back in line": 500,  # preempted while the cohort waits, then one of the next comes first
    "free blocks count as held": 150,
}
SPYRE_FAST = {
    *("volume never refuses", "model length not asked", "promises forgotten", "nothing promised"),
    *("a column too many", "tkv of the longest", "newcomer not noticed", "departure not noticed"),
    *("table head first", "released head first", "evictions forgotten", "last block missed"),
    *("keys without answers", "keys without tokens", "joins at the back", "none overtakes"),
    *("widest first", "never closed", "line without end"),
    *("promise not taken back", "tokens generated not counted"),
}
NANO_VLLM_SLOW = {
    *("budget one too high", "step not counted", "cached tokens counted"),
    *("shared blocks asked for again", "planned blocks are not held", "blind to its own step"),
    *("handed out and found", "newly cached not noticed"),
}
NANO_VLLM_RARE = {"planned blocks are not held": 160}
VLLM_V1_RARE = {
    "first gives way": 50,
    "answer lost with preemption": 50,
    "blind to its own step": 50,
    "lookup not repeated": 50,
    "preempted waits last": 100,
    "losses not noticed": 50,
    "blocks in no order": 100,
    "too early": 100,
    "nothing spoken for": 100,
    "whole prompt not reserved": 200,
    "blocks not kept while they load": 150,
    "last token counts as loaded": 1_500,
    "priorities not looked at": 250,
    "victim is not refunded": 250,
    "a token too little room": 100,
    "split all the same": 300,
    "not read ahead": 500,
    "kept by victims": 100,
    "closed": 150,
    "places free": 300,
    "a token short": 150,
    "in front": 300,
    "states for all": 300,
    "cut anywhere": 150,
    "state of the step": 150,
    "read no more": 150,
    "loaded behind the window": 250,
    "not free first": 250,
}
TABLES = {
    "spyre": Table(
        SPYRE_FAULTS,
        "admission padding jumps blocks caching order accounting",
        100,
        SPYRE_RARE,
        {fault.name for fault in SPYRE_FAULTS} - SPYRE_FAST,
    ),
    "nano-vllm": Table(
        NANO_VLLM_FAULTS,
        "admission blocks caching order accounting",
        50,
        NANO_VLLM_RARE,
        NANO_VLLM_SLOW,
    ),
    "vllm-v1": Table(
        VLLM_V1_FAULTS,
        "budget preemption encoder blocks caching order speculation loading flights sessions groups"
        " accounting",
        20,
        VLLM_V1_RARE,
        VLLM_V1_RARE,
    ),
}


@pytest.mark.parametrize(
    ("policy", "fault"),
    [
        pytest.param(
            policy,
            fault,
            id=f"{policy}-{fault.name}",
            marks=pytest.mark.thorough if fault.name in table.slow else (),
        )
        for policy, table in TABLES.items()
        for fault in table.faults
    ],
)
def test_planted_fault_of_the_engine_is_found(policy: str, fault: EngineFault) -> None:
    episodes = TABLES[policy].rare.get(fault.name, TABLES[policy].episodes)

    finding = hunt_fault(system_of(policy, "engine"), fault, episodes).finding

    assert finding is not None, fault.sentence
    # A wrong function that does not fit into its place would end every case.
    assert finding.cause not in ("TypeError", "AttributeError", "NameError"), finding.says


@pytest.mark.parametrize("policy", TABLES)
def test_the_table_has_faults_of_every_area(policy: str) -> None:
    table = TABLES[policy]
    names = {fault.name for fault in table.faults}

    assert {fault.area for fault in table.faults} == {*table.areas.split()}
    assert len(names) == len(table.faults)
    assert names >= {*table.rare, *table.slow}
    assert names >= SPYRE_FAST or policy != "spyre"
