"""Recorded steps of a release reveal mutants of the reference."""

from typing import Any

import pytest
from attrs import evolve

from checks.mutants.conforming import Conforming, recorded_cases, steps_digest
from checks.mutants.killing import Evidence, outcomes
from checks.mutants.rooms import ROOT
from checks.mutants.sites import find_mutants
from checks.mutants.trials import tried_now
from checks.registry import known_policy

CASES = [case for case in recorded_cases("vllm-v0") if case.episode < 8]


def test_reference_takes_the_steps_that_the_release_took() -> None:
    found = [case.verdict() for case in CASES]

    assert found
    assert None not in found  # there the release would be known to do otherwise


def test_where_the_release_raises_the_reference_says_that_the_engine_ends() -> None:
    raising = next(case for case in recorded_cases("vllm-v0") if case.raises_after is not None)

    steps = raising.served().steps

    assert raising.verdict() is not None
    assert [bool(step.after.failure) for step in steps].index(True) == raising.raises_after


@pytest.mark.parametrize(
    "change",
    [
        "block not in memory.pool.references -> block in memory.pool.references",
        "block in marks -> block not in marks",
    ],
)
def test_what_no_rule_notices_differs_from_what_the_release_did(change: str) -> None:
    path = "reference/vllm_v0/memory.py"
    source = (ROOT / path).read_text(encoding="utf-8")
    (mutant,) = (mutant for mutant in find_mutants(source, path) if mutant.change == change)

    (found,) = outcomes(Evidence.of(tried_now(CASES)), [mutant])

    assert (found.by, found.means) == ("vLLM 0.9.2 does otherwise", "conform")


def test_policy_of_which_nothing_is_on_record_has_no_cases() -> None:
    assert [*recorded_cases("nano-vllm")] == []


def test_record_of_other_steps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = steps_digest(known_policy("vllm-v0"), [])
    entry = {"release": "vLLM 0.9.2", "driver": "vllm-v0", "config": {}, "abilities": []}
    monkeypatch.setattr(
        "checks.mutants.conforming._on_record", lambda _: entry | {"steps": {"0": other}}
    )

    with pytest.raises(AssertionError, match="write the record again"):
        Conforming("vllm-v0", 0).verdict()


def test_digest_depends_on_what_a_release_reports_and_not_on_events() -> None:
    policy = known_policy("vllm-v0")
    step = next(step for step in CASES[0].served().steps if step.events)

    def digest(**changed: Any) -> str:
        return steps_digest(policy, [evolve(step, **changed)])

    assert digest(events=(), refusal="V0-BUD-1") == digest()
    assert digest(lookahead_slots=step.lookahead_slots + 1) != digest()
    assert digest(after=evolve(step.after, ignored=frozenset({"other"}))) != digest()
