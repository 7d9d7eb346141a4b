"""Drivers of vLLM V1: told faithfully nothing differs, and a fault is found where it is."""

from collections import Counter
from collections.abc import Callable

import pytest
from checks.conformance.campaign import Plan
from checks.conformance.episode import Outcome, Terms, run_episode
from checks.fuzz.compare import Strictness
from checks.fuzz.finding import Kind
from tests.checks.conformance.faithful import Fault
from tests.checks.conformance.faithful_v1 import RELEASED, STRANGER, FaithfulV1Lab

from checks.harness.driver.protocol import Json
from tests.recorded.scenes import SCENES

EVENTS_OR_REFUSALS = {"V1-KV-8", "V1-PRE-5", "V1-PRG-3", "V1-EXT-5"}


def test_a_driver_that_does_as_the_reference_has_no_difference_in_any_random_case() -> None:
    counts: Counter[str] = Counter()
    steps, plan = 0, Plan((), STRANGER, seed=11)
    for episode in range(40):
        outcome = run_episode(FaithfulV1Lab(), plan.case(episode), plan.terms_of(episode))
        assert outcome.finding is None, outcome.finding
        assert outcome.judged == outcome.steps
        assert set(outcome.untold) <= EVENTS_OR_REFUSALS
        steps += outcome.steps
        counts += outcome.counts

    assert steps > 500
    assert counts["lose_load"] + counts["load_failed"]
    for action in ("preempt", "rollback", "accepted draft", "prefix_hit", "loaded", "promote"):
        assert counts[action], action
    assert counts["abort while running, decoding"]


def served(fault: Fault | None = None, scene: str = "drafts", **terms: object) -> Outcome:
    given = Terms(**terms)  # type: ignore[arg-type]
    return run_episode(FaithfulV1Lab(fault=fault), SCENES[scene].case, given)


def at(step: int, change: Callable[[Json], object]) -> Fault:
    def fault(records: list[Json]) -> None:
        change(records[step])

    return fault


FAULTS: dict[str, tuple[Fault, str]] = {
    "more tokens": (at(1, lambda told: told["scheduled"].update(a=9)), "scheduled"),
    "a draft less": (at(1, lambda told: told["drafts"].update(a=2)), "drafts"),
    "another token": (at(1, lambda told: told["outputs"].update(a=[7])), "outputs"),
    "a victim": (at(1, lambda told: told["preempted"].append("a")), "preempted"),
    "budget that is left": (at(1, lambda told: told.update(budget_left=3)), "budget_left"),
    "computed too early": (
        at(1, lambda told: told["planned"]["rows"][0].update(computed=6)),
        "planned.running.computed",
    ),
    "a rollback that is missing": (
        at(1, lambda told: told["rows"][0].update(computed=9)),
        "after.running.computed",
    ),
    "nobody is reported": (at(-2, lambda told: told.update(reported=[])), "reported"),
    "free blocks in another order": (
        at(1, lambda told: told["free_list"].reverse()),
        "after.pool.free",
    ),
    "a block that no lookup finds": (at(1, lambda told: told["cached"].pop()), "after.pool.keys"),
    "another usage": (at(1, lambda told: told["statistics"].update(usage=1.0)), "statistics.usage"),
    "a count that does not add up": (
        at(1, lambda told: told["blocks"].update(free=0)),
        "blocks.free",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_in_its_field(name: str) -> None:
    fault, cause = FAULTS[name]

    finding = served(fault).finding

    assert finding is not None
    assert (finding.kind, finding.cause) == (Kind.DIVERGENCE, cause)


def test_a_token_in_the_wrong_slot_is_found_by_the_device_even_if_nobody_compares() -> None:
    """Two tables with a block swapped: the scheduler's decisions stay the same."""

    def swapped(records: list[Json]) -> None:
        tables = records[2]["planned"]["block_tables"]
        tables["a"][0], tables["b"][0] = tables["b"][0], tables["a"][0]

    found = served(swapped, strictness=Strictness.DECISIONS, judged=False).finding

    assert found is not None
    assert found.cause.startswith("device: ")


def test_what_is_known_of_a_release_is_nobody_elses_excuse() -> None:
    """All of the padding taken for rejected drafts, of which one was scheduled."""
    scene = SCENES["padding_cut"]

    def fault(records: list[Json]) -> None:
        records[2]["drafts"]["b"] = 3

    known = run_episode(FaithfulV1Lab(RELEASED, fault), scene.case, scene.terms)
    unknown = run_episode(FaithfulV1Lab(STRANGER, fault), scene.case, scene.terms)
    repaired = run_episode(FaithfulV1Lab(RELEASED), scene.case, scene.terms)

    assert (known.known, known.finding) == ("VLM-1", None)
    assert unknown.finding is not None
    assert unknown.finding.cause == "drafts"
    assert repaired.missed == {"VLM-1": 1}


@pytest.mark.parametrize(
    ("scene", "excused"),
    [
        ("left_without_a_token", {"V1-BUD-4"}),
        ("nobody_runs", {"V1-PRG-4", "endless"}),
        ("all_loaded", {"V1-PRG-4", "endless"}),
        ("hashed_ahead", {"V1-KV-12", "device: read unwritten"}),
        ("unwritten", {"V1-KV-10", "V1-KV-12", "device: read unwritten"}),
    ],
)
def test_what_the_machine_breaks_as_the_release_does_is_counted(
    scene: str, excused: set[str]
) -> None:
    outcome = served(scene=scene)

    assert outcome.finding is None
    assert set(outcome.excused) == excused
