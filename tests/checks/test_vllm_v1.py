"""vLLM V1 explored: exact counts, what does not hold, a witness for every rule."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from checks.explore import Counterexample, Outcome, Result, explore
from checks.policies.vllm_v1.instances import DEFAULT
from checks.policies.vllm_v1.policy import VLLM_V1
from spec.vllm_v1.records import Load, State, Step
from spec.vllm_v1.rules import REGISTRY

CHAPTER = Path(__file__).parents[2] / "spec/chapters/vllm_v1.md"
INSTANCES = {instance.name: instance for instance in DEFAULT}

# states, transitions, depth
COUNTS = {
    "fcfs": (1_230, 2_131, 12),
    "fcfs, two victims": (596, 922, 12),
    "priority": (887, 1_175, 13),
    "priority, hashed ahead": (30, 31, 7),
    "threshold": (1_049, 1_488, 12),
    "uncut": (480, 610, 9),
    "uncut, 0.11.2": (361, 527, 8),
    "shared prefix": (533, 707, 9),
    "eviction, 0.11.2": (301, 458, 11),
    "speculation": (548, 1_353, 9),
    "speculation, padding": (579, 1_521, 10),
    "lookahead": (108, 186, 8),
    "async load": (3_906, 6_680, 13),
    "async load, priority": (66, 88, 9),
    "async load, lookahead": (41, 54, 8),
    "sync load": (576, 788, 10),
    "sync load, lost": (103, 124, 8),
    "sync load, gone": (173, 236, 8),
}

# Rules that do not hold, with the reason. All others do, in every state and step.
REFUTED = {
    "priority": {"V1-BUD-4"},  # a victim of itself ends the loop before those behind it
    "async load, priority": {"V1-PRG-4", "V1-PRG-5"},  # nobody runs, and nobody ever will
    "async load, lookahead": {"V1-PRG-4", "V1-PRG-5"},  # the same, first come, first served
    "priority, hashed ahead": {"V1-KV-12"},  # nobody fills what a victim was to fill
    "sync load, lost": {"V1-KV-10", "V1-KV-12"},  # blocks stay hashed whose content never came
    "sync load, gone": {"V1-KV-10", "V1-KV-12"},  # the same
}

FAST = {
    "priority, hashed ahead",
    "uncut, 0.11.2",
    "eviction, 0.11.2",
    "lookahead",
    "async load, priority",
    "async load, lookahead",
    "sync load, lost",
    "sync load, gone",
}


@cache
def explored(name: str) -> Result[State]:
    model = VLLM_V1.model(INSTANCES[name])
    properties = VLLM_V1.properties_of(model)
    return explore(model, properties.all, properties.witnesses, keep_going=True)


def each_instance() -> list[Any]:
    """The small ones in the fast tier."""
    return [
        pytest.param(name, marks=() if name in FAST else pytest.mark.thorough) for name in COUNTS
    ]


@pytest.mark.parametrize("name", each_instance())
def test_counts_and_verdicts_of_the_default_instances(name: str) -> None:
    result = explored(name)

    assert result.stopped_by is None
    assert (result.states, result.transitions, result.depth) == COUNTS[name]
    assert {violation.rule for violation in result.violations} == REFUTED.get(name, set())
    assert result.deadlocks == 0


def test_counts_cover_every_default_instance() -> None:
    assert COUNTS.keys() == INSTANCES.keys()


@pytest.mark.thorough
def test_every_rule_is_witnessed_in_some_instance() -> None:
    witnessed = {
        rule for name in COUNTS for rule, seen in explored(name).witnesses.items() if seen.edges
    }

    assert witnessed == REGISTRY.keys()


def counterexample(name: str, rule: str) -> Counterexample[State]:
    (violation,) = (one for one in explored(name).violations if one.rule == rule)
    return violation.counterexample


@pytest.mark.thorough
def test_a_request_that_preempts_itself_keeps_a_more_urgent_one_from_its_token() -> None:
    """0 needs a block and is itself the worst; 2, behind it in the queue, needs none."""
    run = counterexample("priority", "V1-BUD-4")

    last = run.steps[-1].record
    assert isinstance(last, Step)
    assert (last.preempted, last.scheduled, last.budget_left) == (("0",), {}, 6)
    assert [one.id for one in last.planned.running] == ["2"]


def test_lost_load_leaves_blocks_that_can_be_found_and_hold_nothing() -> None:
    run = counterexample("sync load, lost", "V1-KV-10")

    assert [edge.action for edge in run.steps] == ["arrive 0", "step, 0 loses its load"]
    (row,) = run.last.running
    assert (row.computed, row.blocks) == (0, (1, 2, 3))
    assert {1, 2} <= run.last.pool.keys.keys()


def test_a_block_that_a_victim_was_to_fill_can_be_found() -> None:
    """0 had computed six tokens and was given a chunk of three; then 1 wants the fifth block."""
    run = counterexample("priority, hashed ahead", "V1-KV-12")

    assert [edge.action for edge in run.steps] == ["arrive 0", "step", "arrive 1", "step", "step"]
    before, last = run.steps[-2].state, run.steps[-1].record
    assert isinstance(last, Step)
    assert (last.scheduled, last.preempted) == ({"1": 1}, ("0",))
    assert [(one.id, one.computed, one.blocks) for one in before.running] == [
        ("0", 6, (1, 2, 3)),
        ("1", 2, (4,)),
    ]
    assert run.last.pool.keys.keys() - before.pool.keys.keys() == {5}


def test_two_that_have_loaded_wait_for_ever_for_each_others_block() -> None:
    """All blocks are theirs; in the step each would need a second one, for its lookahead."""
    run = counterexample("async load, lookahead", "V1-PRG-4")

    first, second = run.last.present
    assert (first.load, first.computed, len(first.blocks)) == (Load.NONE, 1, 1)
    assert (second.load, second.computed, len(second.blocks)) == (Load.LOADED, 2, 1)
    assert (run.last.running, run.last.pool.free) == ((), ())


def test_urgent_request_waits_for_ever_for_blocks_of_one_that_has_loaded_behind_it() -> None:
    """1 has loaded and holds the third block; 0 preempted itself for it and stands in front."""
    run = counterexample("async load, priority", "V1-PRG-4")

    assert run.last.running == ()
    behind, urgent = run.last.present
    assert (behind.id, behind.load, len(behind.blocks)) == ("1", Load.LOADED, 1)
    assert (urgent.id, urgent.blocks, len(run.last.pool.free)) == ("0", (), 2)


def test_outcome_is_named_by_the_instance_that_refutes() -> None:
    assert explored("sync load, lost").outcome is Outcome.VIOLATED
    assert explored("lookahead").outcome is Outcome.HOLDS


def test_chapter_names_every_rule_and_the_instances_that_refute() -> None:
    text = CHAPTER.read_text()
    named = set(re.findall(r"(?<!PRV-)V1-[A-Z]+-\d+", text))

    assert named == REGISTRY.keys()
    for name, rules in REFUTED.items():
        for rule in rules:
            assert re.search(rf"{rule}.*refuted in: .*{name}", text)


def test_chapter_tells_how_much_was_explored() -> None:
    states, transitions = (sum(counts[place] for counts in COUNTS.values()) for place in (0, 1))

    assert f"{len(COUNTS)} instances with {states:,} states and {transitions:,} transitions" in (
        CHAPTER.read_text().replace("\n", " ")
    )
