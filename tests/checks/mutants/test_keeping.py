"""What trials say of the right program is found again, and only with the same sources."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from checks.mutants import keeping
from checks.mutants.cases import Fuzzing
from checks.mutants.keeping import Kept
from checks.mutants.reach import with_reach
from checks.mutants.rooms import ROOT
from checks.mutants.trials import Exploring, Refusing, Trial, Tried, tried
from tests.toy.scheduler import Queue

TRIALS: list[Trial] = [
    Exploring("nano-vllm", "nano-vllm, documented"),
    Refusing("vllm-v1", "vllm-v1, lookahead", "max_num_seqs"),
    Refusing("vllm-v1", "vllm-v1, lookahead", "num_blocks"),
    Fuzzing("nano-vllm", 3),
]


@pytest.fixture(autouse=True)
def _kept_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    keeping._path.cache_clear()


def test_a_second_call_finds_what_the_first_one_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Kept().tried(TRIALS)
    monkeypatch.setattr(keeping, "tried_now", lambda trials: map(tried, [*trials][:0]))

    assert Kept().tried(TRIALS) == first
    assert [one.trial for one in first] == TRIALS
    assert first[1].verdict is None
    assert first[2].lines


def test_what_is_new_is_tried_and_joins_the_rest() -> None:
    (some,) = Kept().tried(TRIALS[:1])

    both = Kept().tried(TRIALS[:2])

    assert both[0] == some
    assert len(both) == 2


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
