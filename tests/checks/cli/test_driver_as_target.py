"""A driver under the fuzzer's own harness, and the same case as the campaign runs it."""

import sys
from pathlib import Path

from checks.conformance.episode import Terms, run_episode
from checks.fuzz.lockstep import run_case
from checks.harness.driver.lab import DriverLab
from checks.harness.driver.target import subject_of
from tests.checks.conformance.driver_files import TEMPLATE

from checks.harness.driver.client import Driver
from checks.harness.driver.trial import trial_case
from tests.checks.command import lockstep

CORPUS = Path(__file__).parents[2] / "corpus"
COMMAND = [sys.executable, str(TEMPLATE)]


def test_the_fuzzers_harness_finds_what_the_campaign_finds() -> None:
    with Driver(COMMAND) as driver:
        case = trial_case(driver.hello)
        by_step = run_case(subject_of(driver), case)
    with DriverLab(lambda: Driver(COMMAND)) as lab:
        at_once = run_episode(lab, case, Terms())

    assert by_step.finding is None
    assert at_once.finding is None
    assert by_step.steps > 10


def test_a_driver_is_fuzzed_by_its_name() -> None:
    ran = lockstep("fuzz", "--target", "template", "--episodes", 2)
    assert ran.code == 0
    assert "template (toy 1.0): no unknown difference in 2 episodes" in ran.out


def test_what_fuzz_found_replays_with_a_driver() -> None:
    ran = lockstep("replay", min(CORPUS.glob("*.jsonl")), "--target", "template")
    assert ran.code == 1
    assert "template does otherwise" in ran.out


def test_a_trace_does_not_replay_with_a_driver(tmp_path: Path) -> None:
    """A driver leaves out what it cannot know; the trace has it."""
    trace = tmp_path / "run.jsonl"
    lockstep("run", "examples/tiny.jsonl", "--config", "examples/tiny.toml", "--trace", trace)
    ran = lockstep("replay", trace, "--target", "template")
    assert ran.code == 2
    assert "a driver, for what fuzz has found" in ran.err


def test_a_target_that_nobody_knows_is_refused() -> None:
    ran = lockstep("fuzz", "--target", "nobody", "--episodes", 2)
    assert ran.code == 2
    assert ran.err.startswith("lockstep: DRIVER: found 'nobody'; allowed: template, ")
