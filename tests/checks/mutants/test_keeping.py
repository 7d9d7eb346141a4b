"""Saved verdicts of trials are read again, and only with the same sources."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from checks.export import checkpoint
from checks.mutants import keeping
from checks.mutants.cases import Fuzzing
from checks.mutants.keeping import Kept, KeptOutcomes, fingerprint
from checks.mutants.reach import with_reach
from checks.mutants.rooms import CORE, ROOT
from checks.mutants.trials import Exploring, Refusing, Trial, Tried, tried
from checks.registry import POLICIES
from tests.toy.scheduler import Queue

TRIALS: list[Trial] = [
    Fuzzing("nano-vllm", 3),
    Refusing("vllm-v1", "vllm-v1, lookahead", "max_num_seqs"),
    Refusing("vllm-v1", "vllm-v1, lookahead", "num_blocks"),
    Exploring("nano-vllm", "nano-vllm, documented"),
]


@pytest.fixture(autouse=True)
def _kept_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))
    keeping._path.cache_clear()


def test_a_second_call_finds_what_the_first_one_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Kept().tried(TRIALS)
    monkeypatch.setattr(keeping, "tried_now", lambda trials: map(tried, [*trials][:0]))

    assert Kept().tried(TRIALS) == first
    assert [outcome.trial for outcome in first] == TRIALS
    assert first[1].verdict is None
    assert first[2].lines


def test_what_is_new_is_tried_and_joins_the_rest() -> None:
    (some,) = Kept().tried(TRIALS[:1])

    both = Kept().tried(TRIALS[:2])

    assert both[0] == some
    assert len(both) == 2


def test_a_damaged_file_counts_as_missing() -> None:
    (first,) = Kept().tried(TRIALS[:1])
    path = keeping._path("nano-vllm")
    whole = path.read_bytes()
    for damaged in (b"\xff", whole[:50] + b"7" + whole[51:]):
        path.write_bytes(damaged)

        assert Kept().tried(TRIALS[:1])[0].verdict == first.verdict
        assert len(path.read_bytes()) > len(whole) // 2


def test_damaged_lines_of_outcomes_count_as_missing(tmp_path: Path) -> None:
    kept, path = KeptOutcomes(), tmp_path / "outcomes.jsonl"
    path.write_bytes(b'[0, "a", 1, 2, 3, 4]\n\xff\n{}\n[]\n5\n[[]]\n[0, "b", 1, 2')

    assert [*kept._in(path)] == [(0, "a")]


def test_with_other_sources_all_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Trial] = []

    def noted(trials: Sequence[Trial]) -> Iterator[Tried]:
        asked.extend(trials)
        return map(tried, trials)

    monkeypatch.setattr(keeping, "tried_now", noted)
    Kept().tried(TRIALS[:1])
    keeping._path.cache_clear()
    monkeypatch.setattr(keeping, "sources_digest", lambda *_, **__: "others")

    Kept().tried(TRIALS[:1])

    assert asked == [TRIALS[0], TRIALS[0]]


def test_the_lines_that_run_are_those_of_the_branch_that_is_taken() -> None:
    path = "tests/toy/scheduler.py"
    queue = Queue(limit=2)
    queue.add("a", prompt_len=3)
    source = (ROOT / path).read_text(encoding="utf-8").splitlines()

    _, calls, reached = with_reach(lambda: queue.step(lambda _name, _index: (0, True)))
    run = {source[number - 1].strip() for number in reached[path]}

    assert calls == 3  # of the lambda, the step and what it does
    assert 'row["computed"] += tokens' in run
    assert 'row["generated"] += 1' not in run


@pytest.mark.parametrize(
    ("path", "stale"),
    [
        ("spec/spyre/rules/priority.py", {"spyre", "core"}),
        ("reference/vllm_v1/step.py", {"vllm-v1", "core"}),
        ("checks/policies/nano_vllm/instances.toml", {"nano-vllm", "core"}),
        ("checks/policies/vllm_v0/generator.py", {"vllm-v0", "core"}),
        ("checks/proofs/spyre/any_batch.py", {"spyre", "core"}),
        ("spec/core/blocks.py", {*POLICIES, "core"}),
        ("checks/mutants/trials.py", {*POLICIES, "core"}),
        ("checks/harness/comparison.py", {*POLICIES, "core"}),
        ("checks/cli/mutants.py", set()),
        ("checks/mutants/report.py", set()),
    ],
)
def test_a_change_to_a_source_changes_the_fingerprints_of_its_policies(
    path: str, stale: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (ROOT / path).is_file()
    (tmp_path / path).parent.mkdir(parents=True)
    monkeypatch.setattr(checkpoint, "_ROOT", tmp_path)

    def fingerprints(content: str) -> dict[str, str]:
        (tmp_path / path).write_text(content)
        checkpoint.sources_digest.cache_clear()
        return {policy: fingerprint(policy) for policy in (*POLICIES, CORE)}

    before, after = fingerprints("x = 1\n"), fingerprints("x = 2\n")
    checkpoint.sources_digest.cache_clear()

    assert {policy for policy in after if before[policy] != after[policy]} == stale
