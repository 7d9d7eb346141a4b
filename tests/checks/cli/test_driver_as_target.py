"""A driver as the target of `fuzz` and of `replay`."""

from pathlib import Path

from tests.checks.command import lockstep

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "tests" / "corpus"


def test_a_driver_is_fuzzed_by_its_name() -> None:
    ran = lockstep("fuzz", "--target", "template", "--episodes", 2)
    assert ran.code == 0
    assert "template (toy 1.0): no unknown difference in 2 episodes" in ran.out


def test_what_fuzz_found_replays_with_a_driver_that_can_do_it() -> None:
    """A replay skips the actions that the driver's hello rules out."""
    ran = lockstep("replay", min(CORPUS.glob("*.jsonl")), "--target", "template")
    assert ran.code == 2
    assert "block_size of the case: found 4; allowed: 16: toy 1.0 can do no other" in ran.err


def test_a_trace_does_not_replay_with_a_driver() -> None:
    """A trace holds fields that a driver does not report."""
    tiny = ROOT / "examples" / "tiny"
    workload, config = tiny.with_suffix(".jsonl"), tiny.with_suffix(".toml")
    lockstep("run", workload, "--config", config, "--trace", "run.jsonl")
    ran = lockstep("replay", "run.jsonl", "--target", "template")
    assert ran.code == 2
    assert "a driver, for a counterexample or what fuzz found" in ran.err
