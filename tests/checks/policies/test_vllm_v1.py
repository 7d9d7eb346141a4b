"""vLLM V1 explored: what does not hold, with its shortest runs, and what the chapter says."""

import re
from pathlib import Path

from checks.evidence import EXPLORED, recorded
from checks.explore.model import Counterexample
from checks.explore.policy import machine_of
from checks.explore.properties import properties_of
from checks.explore.search import explore
from spec.vllm_v1.records import Load, State, Step
from spec.vllm_v1.rules import REGISTRY

CHAPTER = Path(__file__).parents[3] / "spec/chapters/vllm_v1.md"
VLLM_V1 = machine_of("vllm-v1")
RECORD = {name: kept for name, kept in recorded(EXPLORED).items() if name.startswith("vllm-v1, ")}


def counterexample(name: str, rule: str) -> Counterexample[State]:
    """A shortest run of an instance that breaks the rule."""
    (instance,) = (instance for instance in VLLM_V1.instances if instance.name == name)
    model = VLLM_V1.model(instance)
    wanted = [claim for claim in properties_of(model).all if claim.rule == rule]
    (violation,) = explore(model, wanted).violations
    return violation.counterexample


def test_a_request_that_preempts_itself_keeps_a_more_urgent_one_from_its_token() -> None:
    """0 needs a block and is itself the worst; 2, behind it in the queue, needs none."""
    run = counterexample("priority", "V1-BUD-4")

    last = run.steps[-1].record
    assert isinstance(last, Step)
    assert (last.preempted, last.scheduled, last.budget_left) == (("0",), {}, 6)
    assert [request.id for request in last.planned.running] == ["2"]


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
    assert [(request.id, request.computed, request.blocks) for request in before.running] == [
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


def test_chapter_names_every_rule_and_the_instances_that_refute() -> None:
    text = CHAPTER.read_text()
    named = set(re.findall(r"(?<!PRV-)V1-[A-Z]+-\d+", text))

    assert named == REGISTRY.keys()
    for name, kept in RECORD.items():
        for rule in kept["violations"]:
            assert re.search(rf"{rule}.*refuted in: .*{name.removeprefix('vllm-v1, ')}", text)
