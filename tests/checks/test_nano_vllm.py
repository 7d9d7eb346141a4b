"""nano-vLLM explored: exact counts, verdicts with their traces, witnesses, planted faults."""

from functools import cache
from inspect import getmembers, isfunction

import pytest

from checks.explore import MACHINE_ERROR, Result, explore
from checks.policies.nano_vllm.instances import DEFAULT
from checks.policies.nano_vllm.policy import NANO_VLLM
from reference.nano_vllm import block_manager, transitions
from spec.nano_vllm.records import State
from spec.nano_vllm.rules import REGISTRY
from tests.checks.nano_vllm_faults import FAULTS, INSTANCES
from tests.checks.planting import Fault, broken_first

BY_NAME = {instance.name: instance for instance in DEFAULT}

# States, transitions, depth.
COUNTS = {
    "preemption": (3448, 4579, 16),
    "budget": (916, 1175, 10),
    "left behind": (570, 681, 11),
    "shared prefix": (1682, 2669, 11),
    "same block elsewhere": (69, 135, 6),
    "same tokens twice": (43, 46, 9),
    "same answers": (2607, 3201, 13),
    "oversized": (28, 37, 7),
    "documented": (638, 762, 16),
    "documented, eviction": (45, 64, 6),
    "repaired, preemption": (2350, 3191, 16),
    "repaired, budget": (832, 1084, 10),
    "repaired, shared prefix": (2422, 3191, 12),
    "repaired, same block elsewhere": (74, 138, 6),
}

# Rules that do not hold, and after how many actions a shortest run breaks them.
REFUTED: dict[str, dict[str, int]] = {
    "preemption": {"NANO-PRE-4": 5},
    "budget": {"NANO-DEC-1": 6},
    "left behind": {"NANO-DEC-1": 5, "NANO-PRE-3": 9, "NANO-PRE-4": 9},
    "shared prefix": {"NANO-PFX-7": 3, "NANO-PFX-6": 3, "NANO-PFX-8": 3},
    "same block elsewhere": {"NANO-PFX-8": 4, "NANO-PFX-3": 6},
    "same tokens twice": {
        "NANO-PRE-4": 4,
        "NANO-PFX-8": 6,
        "NANO-PFX-3": 7,
        "NANO-BLK-4": 7,
        "NANO-PFX-2": 7,
        "NANO-PFX-4": 7,
    },
    "same answers": {"NANO-PFX-6": 3, "NANO-PRE-4": 8, "NANO-PFX-9": 10},
    "oversized": {"NANO-LIF-7": 4, "NANO-LIF-6": 5},
    "documented": {
        "NANO-DEC-3": 3,
        "NANO-BLK-4": 3,
        "machine-error": 2,
        "NANO-PRE-4": 4,
        "NANO-PFX-3": 6,
        "NANO-PFX-1": 7,
        "NANO-PFX-4": 7,
    },
    "documented, eviction": {"NANO-PFX-8": 4, "NANO-PFX-3": 6},
    "repaired, preemption": {"NANO-PRE-4": 5},
    "repaired, shared prefix": {"NANO-PFX-6": 3, "NANO-PRE-4": 6},
}


@cache
def explored(name: str) -> Result[State]:
    instance = BY_NAME[name]
    model = NANO_VLLM.model(instance)
    properties = NANO_VLLM.properties_of(model)
    return explore(model, properties.all, properties.witnesses, keep_going=True)


@pytest.mark.parametrize("name", BY_NAME)
def test_states_and_verdicts_of_an_instance_are_exact(name: str) -> None:
    result = explored(name)

    assert result.stopped_by is None
    assert (result.states, result.transitions, result.depth) == COUNTS[name]
    refuted = {one.rule: len(one.counterexample.steps) for one in result.violations}
    assert refuted == REFUTED.get(name, {})


def test_every_rule_has_a_witness_somewhere() -> None:
    unseen = [set(explored(name).missing_witnesses) for name in BY_NAME]

    assert set.intersection(*unseen) == set()


# --- claims of the text that do not hold, each with its shortest run ------------------------------


def run_of(name: str, rule: str) -> tuple[list[str], str, int | None]:
    """The actions of the shortest run that breaks the rule, what was found, where it repeats."""
    (violation,) = (one for one in explored(name).violations if one.rule == rule)
    run = violation.counterexample
    return [edge.action for edge in run.steps], violation.found, run.loop_from


def test_hit_checked_by_its_tokens_finds_a_block_behind_another_prefix() -> None:
    """0 is ppaa, 1 is qqaa, 2 is ppaax: block 1 held ppaa, then qqaa; 2 takes it for ppaa."""
    actions, found, _ = run_of("same block elsewhere", "NANO-PFX-3")

    assert actions == ["arrive 0", "arrive 1", "arrive 2", "step", "step", "step"]
    assert found == "request 2 found block 1, written for other tokens"
    assert "NANO-PFX-3" not in REFUTED.get("repaired, same block elsewhere", {})


def test_victims_block_that_another_used_is_found_for_two_places_of_its_table() -> None:
    """Block 3 held the third pair of 1, then the second of 0; both are 2 2, and both are named."""
    actions, found, _ = run_of("same tokens twice", "NANO-BLK-4")

    assert actions == ["arrive 0", "arrive 1", *["step"] * 5]
    assert found == "request 1: 7 tokens, blocks [0, 3, 3, 2]"


def test_prompt_that_is_cached_as_a_whole_computes_nothing_and_gets_a_token() -> None:
    actions, found, _ = run_of("shared prefix", "NANO-PFX-8")

    assert actions == ["arrive 0", "arrive 2", "step"]
    assert found == "request 2 computed 0 tokens in a prefill step"


def test_cached_tokens_count_against_the_budget_as_released() -> None:
    actions, found, _ = run_of("shared prefix", "NANO-PFX-7")

    assert actions == ["arrive 0", "arrive 1", "step"]
    assert found == "request 1 was refused, 6 and 1 new tokens"


def test_limit_on_the_step_leaves_running_sequences_without_a_token() -> None:
    actions, found, _ = run_of("budget", "NANO-DEC-1")

    assert actions == ["arrive 0", "arrive 1", "arrive 2", "step", "step", "step"]
    assert found == "running ['0', '1', '2'], decoded ['0', '1']"


def test_victim_is_not_the_one_whose_prefill_costs_least() -> None:
    actions, found, _ = run_of("preemption", "NANO-PRE-4")

    assert actions == ["arrive 0", "arrive 2", "arrive 1", "step", "step"]
    assert found == "victim 1 has 3, by sequence {'0': 4, '2': 2, '1': 3}"


def test_victim_has_generated_more_than_who_was_left_behind() -> None:
    """0 alone decodes and takes the block of 2, ends, 2 comes back; then 1 needs a block."""
    actions, found, _ = run_of("left behind", "NANO-PRE-3")

    assert (
        actions
        == [*(f"arrive {one}" for one in "012"), *["step"] * 3, "step, 0 ends"] + ["step"] * 2
    )
    assert found == "victim 2 has 2, by sequence {'1': 1, '2': 2}"


def test_request_larger_than_the_pool_waits_for_ever() -> None:
    """It preempts itself in the last step before the loop, in which nobody can be scheduled."""
    actions, found, loop_from = run_of("oversized", "NANO-LIF-6")

    assert actions == ["arrive 0", "step", "step", "step", "step"]
    assert (found, loop_from) == ("step 5 repeats for ever without the goal", 4)


def test_block_taken_at_the_boundary_is_missing_where_a_prompt_ends_there() -> None:
    """Prompt de, blocks of two: with its first answer it has three tokens and one block."""
    actions, found, _ = run_of("documented", MACHINE_ERROR)

    assert actions == ["arrive 1", "step"]
    assert found == "raised GuardError: decode is not allowed here: NANO-SLT-1"


# --- planted faults -------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [pytest.param(one, id=one.name) for one in FAULTS])
def test_planted_fault_breaks_the_rules_that_name_it_and_no_other(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault.plant(monkeypatch)
    model = NANO_VLLM.model(INSTANCES[fault.instance])
    refuted = REFUTED.get(fault.instance, {})
    holding = [one for one in NANO_VLLM.properties_of(model).safety if one.rule not in refuted]

    assert broken_first(model, holding) == set(fault.rules), fault.sentence


def test_every_transition_has_a_planted_fault() -> None:
    functions = {
        name
        for module in (transitions, block_manager)
        for name, function in getmembers(module, isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }

    assert functions | {"schedule", "graph"} == {fault.transition for fault in FAULTS}


def test_every_rule_can_fail() -> None:
    noticed = {rule for fault in FAULTS for rule in fault.rules}
    refuted = {rule for rules in REFUTED.values() for rule in rules}

    assert REGISTRY.keys() - noticed - refuted == set()
