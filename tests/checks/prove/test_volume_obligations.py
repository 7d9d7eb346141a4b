"""The volume rules: the text's is refuted with numbers that run, `exact` holds for a pair."""

from pathlib import Path

import pytest
from attrs import evolve

from checks.prove.prover import prove
from checks.prove.scenario import write_scenario
from checks.traces import read_trace
from spec import admission
from spec.admission import Member
from spec.arithmetic import Number, Truth
from spec.obligations import OBLIGATIONS, Verdict, documented, exact


def test_the_text_is_refuted_with_numbers_that_run(tmp_path: Path) -> None:
    refuted = OBLIGATIONS["PRV-VOL-1"]
    proof = prove(refuted)
    assert proof.verdict is Verdict.REFUTED
    path = write_scenario(refuted, proof.numbers, tmp_path)
    assert path is not None
    violation = read_trace(path).violation
    assert violation is not None
    assert violation.rule == "SPY-VOL-1"


def test_a_block_of_slack_for_the_newcomer_would_repair_the_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def with_slack(
        decoding: list[Member], candidate: Member, limit: Number, block_size: Number
    ) -> Truth:
        generous = evolve(candidate, remaining=candidate.remaining + block_size)
        return admission.documented_volume_holds(decoding, generous, limit, block_size)

    monkeypatch.setattr(documented, "documented_volume_holds", with_slack)
    assert prove(OBLIGATIONS["PRV-VOL-1"]).verdict is Verdict.PROVEN


def test_exact_keeps_the_limit_for_a_pair() -> None:
    assert prove(OBLIGATIONS["PRV-EXA-7"]).verdict is Verdict.PROVEN


def test_exact_with_a_limit_one_too_high_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_high(
        decoding: list[Member], candidate: Member, limit: Number, block_size: Number
    ) -> Truth:
        return admission.exact_volume_holds(decoding, candidate, limit + 1, block_size)

    monkeypatch.setattr(exact, "exact_volume_holds", too_high)
    assert prove(OBLIGATIONS["PRV-EXA-7"]).verdict is Verdict.REFUTED


def test_a_scenario_that_breaks_nothing_is_an_error(tmp_path: Path) -> None:
    harmless = {"tokens_0": 3, "remaining_0": 1, "prompt_len": 1, "max_tokens": 1}
    with pytest.raises(ValueError, match="the reference breaks no rule"):
        write_scenario(OBLIGATIONS["PRV-VOL-1"], {**harmless, "limit": 64}, tmp_path)
    assert list(tmp_path.iterdir()) == []
