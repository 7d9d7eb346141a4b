"""Drivers of vLLM V1: a faithful driver has no finding, and a fault is found in its field."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

import tests.recorded
from checks.harness.campaigns.campaign import Plan
from checks.harness.campaigns.recording import read_recording
from checks.harness.comparing import Strictness
from checks.harness.comparison import Terms, compare
from checks.harness.finding import Episode, Kind
from checks.harness.system import Hello, Json
from tests.checks.harness.cases import There
from tests.checks.harness.driver.faithful import Fault, at
from tests.checks.policies.vllm_v1.driver import RELEASED, SAYS_ORDER, STRANGER, driver
from tests.recorded.scenes import SCENES

RECORDED = Path(next(iter(tests.recorded.__path__)))
# What they judge depends on what came first.
HISTORY = {"V1-KV-19", "V1-KV-20", "V1-KV-21"}
ORDERS = {"V1-KV-8", "V1-KV-17", "V1-PRE-5", "V1-EXT-5", "V1-EXT-11"}


def faithful_counts(hello: Hello, episodes: int, not_judged: set[str]) -> Counter[str]:
    """The actions of random cases, in none of which a faithful driver differs."""
    counts: Counter[str] = Counter()
    system = driver(hello)
    plan = Plan(There(system), seed=11)
    for number in range(episodes):
        episode = compare(system, plan.case(number), plan.terms_of(number))
        assert episode.finding is None, episode.finding
        assert episode.judged == episode.steps
        assert set(episode.not_evaluated) <= not_judged
        counts += episode.counts
        counts["steps"] += episode.steps
    return counts


def test_without_an_order_only_rules_on_orders_are_not_judged() -> None:
    assert faithful_counts(STRANGER, 10, ORDERS | HISTORY)["steps"] > 100


def test_a_driver_that_does_as_the_reference_has_no_difference_in_any_random_case() -> None:
    counts = faithful_counts(SAYS_ORDER, 25, HISTORY)

    assert counts["steps"] > 500
    assert counts["lose_load"] + counts["load_failed"]
    for action in ("preempt", "rollback", "accepted draft", "prefix_hit", "loaded", "promote"):
        assert counts[action], action
    assert counts["abort while running, decoding"]


def served(fault: Fault | None = None, scene: str = "drafts", **terms: Any) -> Episode:
    return compare(driver(fault=fault), SCENES[scene].case, Terms(**terms))


FAULTS: dict[str, tuple[Fault, str]] = {
    "more tokens": (at(1, lambda record: record["scheduled"].update(a=9)), "scheduled"),
    "a draft less": (at(1, lambda record: record["drafts"].update(a=2)), "drafts"),
    "another token": (at(1, lambda record: record["outputs"].update(a=[7])), "outputs"),
    "a victim": (at(1, lambda record: record["preempted"].append("a")), "preempted"),
    "budget that is left": (at(1, lambda record: record.update(budget_left=3)), "budget_left"),
    "computed too early": (
        at(1, lambda record: record["planned"]["rows"][0].update(computed=6)),
        "planned.running.computed",
    ),
    "a rollback that is missing": (
        at(1, lambda record: record["rows"][0].update(computed=9)),
        "after.running.computed",
    ),
    "no request is reported": (at(-2, lambda record: record.update(reported=[])), "reported"),
    "free blocks in another order": (
        at(1, lambda record: record["free_list"].reverse()),
        "after.pool.free",
    ),
    "a block that no lookup finds": (
        at(1, lambda record: record["cached"].pop()),
        "after.pool.keys",
    ),
    "another usage": (
        at(1, lambda record: record["statistics"].update(usage=1.0)),
        "statistics.usage",
    ),
    "a token found too many": (
        at(0, lambda record: record["lookups"].update(found=1)),
        "lookups.found",
    ),
    "in no queue before it is admitted": (
        at(0, lambda record: record["before"].update(waiting=[], rows=[])),
        "before.waiting",
    ),
    "a count that does not add up": (
        at(1, lambda record: record["blocks"].update(free=0)),
        "blocks.free",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_in_its_field(name: str) -> None:
    fault, cause = FAULTS[name]

    finding = served(fault).finding

    assert finding is not None
    assert (finding.kind, finding.cause) == (Kind.DIVERGENCE, cause)


def test_a_token_in_the_wrong_slot_is_found_by_the_device_even_if_it_is_not_compared() -> None:
    """Two tables with a block swapped: the scheduler's decisions stay the same."""

    def swapped(records: list[Json]) -> None:
        tables = records[2]["planned"]["block_tables"]
        tables["a"][0], tables["b"][0] = tables["b"][0], tables["a"][0]

    found = served(swapped, strictness=Strictness.DECISIONS, judged=False).finding

    assert found is not None
    assert found.cause.startswith("device: ")


def test_what_is_known_of_a_release_excuses_no_other() -> None:
    """All of the padding taken for rejected drafts, of which one was scheduled."""
    scene = SCENES["padding_cut"]

    def fault(records: list[Json]) -> None:
        records[2]["drafts"]["b"] = 3

    known = compare(driver(RELEASED, fault=fault), scene.case, scene.terms)
    unknown = compare(driver(fault=fault), scene.case, scene.terms)
    repaired = compare(driver(RELEASED), scene.case, scene.terms)

    assert (known.known, known.finding) == ("VLM-1", None)
    assert unknown.finding is not None
    assert unknown.finding.cause == "drafts"
    assert repaired.overdue == {"VLM-1": 1}


@pytest.mark.parametrize(
    ("scene", "expected"),
    [
        ("left_without_a_token", {"V1-BUD-4"}),
        ("none_runs", {"V1-PRG-4", "endless"}),
        ("all_loaded", {"V1-PRG-4", "endless"}),
        ("answered_in_front", {"V1-PRG-4", "endless"}),
        ("never_pooled", {"V1-PRG-4", "endless"}),
        ("hashed_ahead", {"V1-KV-12", "device: read unwritten"}),
        ("unwritten", {"V1-KV-10", "V1-KV-12", "device: read unwritten"}),
    ],
)
def test_what_the_machine_breaks_as_the_release_does_is_counted(
    scene: str, expected: set[str]
) -> None:
    episode = served(scene=scene)

    assert episode.finding is None
    assert set(episode.expected) == expected


def test_blocks_given_in_another_order_break_the_rule_of_the_free_list() -> None:
    """Both get the blocks that they got, the second before the first."""
    swapped = at(1, lambda record: record["order"].reverse())

    finding = compare(driver(SAYS_ORDER, fault=swapped), SCENES["drafts"].case, Terms()).finding

    assert finding is not None
    assert finding.rule == "V1-KV-8"


@pytest.mark.parametrize(
    ("scene", "broken"),
    [
        ("vllm-v1-0.11.2-stepped_over", {"V1-ORD-3"}),  # VLM-2
        ("vllm-v1-0.28.0-load_lost", {"V1-PRG-7", "V1-SPC-6"}),  # VLM-3
        ("vllm-v1-0.28.0-gone_in_their_order", set[str]()),
        ("vllm-v1-0.28.0-loads", set[str]()),
    ],
)
def test_what_a_release_does_otherwise_breaks_a_rule_without_any_comparison(
    scene: str, broken: set[str]
) -> None:
    recording = read_recording(RECORDED / f"{scene}.jsonl")

    episode = compare(recording, recording.case, evolve(recording.terms, rules_only=True))

    assert {cause for _, cause in episode.findings} == broken
