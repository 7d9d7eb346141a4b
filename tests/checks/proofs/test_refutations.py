"""False claims are refuted with the smallest numbers, which run; repaired they are proven."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from attrs import evolve

from checks.export.trace.reading import read_trace
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.prover import prove
from checks.proofs.registry import Verdict
from checks.proofs.scenario import write_scenario
from checks.proofs.spyre import documented, model_length, shipped
from spec.core.arithmetic import Number, Truth
from spec.spyre import admission
from spec.spyre.admission import Member
from spec.spyre.padding import max_tkv
from tests.checks.command import lockstep


@pytest.mark.parametrize(
    ("name", "rule", "numbers"),
    [
        (
            "PRV-VOL-1",
            "SPY-VOL-1",
            {"limit": 6, "step": 1}
            | {"tokens_0": 2, "remaining_0": 1, "prompt_len": 1, "max_tokens": 2},
        ),
        (
            "PRV-SHP-4",
            "SPY-PAU-6",
            {"limit": 16, "step": 1}
            | {"first_prompt": 4, "second_prompt": 1, "third_prompt": 1}
            | {"first_max_tokens": 2, "second_max_tokens": 2, "third_max_tokens": 2},
        ),
        (
            "PRV-LEN-3",
            "SPY-LEN-1",
            {"max_model_len": 6, "step": 1}
            | {"tokens_0": 2, "remaining_0": 1, "prompt_len": 4, "max_tokens": 2},
        ),
        (
            "PRV-LEN-4",
            "SPY-LEN-1",
            {"max_model_len": 6, "step": 1}
            | {"tokens_0": 2, "remaining_0": 1, "prompt_len": 4, "max_tokens": 2},
        ),
    ],
)
def test_a_false_claim_is_refuted_with_the_smallest_numbers_and_they_run(
    name: str, rule: str, numbers: dict[str, int], tmp_path: Path
) -> None:
    proof = prove(OBLIGATIONS[name])
    assert proof.verdict is Verdict.REFUTED
    assert proof.numbers == numbers
    path = write_scenario(OBLIGATIONS[name], proof.numbers, tmp_path)
    assert path is not None
    violation = read_trace(path).violation
    assert violation is not None
    assert violation.rule == rule
    for target in ("reference", "engine"):
        ran = lockstep("replay", path, "--target", target)
        assert ran.code == 1
        assert f"{rule} is broken in step" in ran.out


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


def test_the_tkv_of_the_batch_repairs_shipped_without_interleaving(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of_the_batch(
        decoding: Sequence[Member], candidate: Member, limit: Number, size: Number, _tkv: Number
    ) -> Truth:
        tkv = max_tkv([row.length for row in decoding], size)
        return admission.shipped_volume_holds(decoding, candidate, limit, size, tkv)

    monkeypatch.setattr(shipped, "shipped_volume_holds", of_the_batch)
    assert prove(OBLIGATIONS["PRV-SHP-4"]).verdict is Verdict.PROVEN


@pytest.mark.parametrize("name", ["PRV-LEN-3", "PRV-LEN-4"])
def test_with_blocks_of_two_tokens_no_length_is_exceeded(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every length is a multiple of the block, or one more."""
    monkeypatch.setattr(model_length, "BLOCK", 2)
    assert prove(OBLIGATIONS[name]).verdict is Verdict.PROVEN


def test_a_scenario_that_breaks_nothing_is_an_error(tmp_path: Path) -> None:
    harmless = {"tokens_0": 3, "remaining_0": 1, "prompt_len": 1, "max_tokens": 1}
    with pytest.raises(ValueError, match="the reference breaks no rule"):
        write_scenario(OBLIGATIONS["PRV-VOL-1"], {**harmless, "limit": 64}, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough  # the fast tier runs `lockstep prove`, which replays every refutation too
@pytest.mark.parametrize(
    ("name", "rule"),
    [("PRV-RUN-1B", "SPY-VOL-1"), ("PRV-RUN-3B", "SPY-PAU-6"), ("PRV-RUN-4", "SPY-LEN-1")],
)
def test_a_refuted_run_breaks_the_rule_on_the_reference(
    name: str, rule: str, tmp_path: Path
) -> None:
    proof = prove(OBLIGATIONS[name])
    assert proof.verdict is Verdict.REFUTED
    path = write_scenario(OBLIGATIONS[name], proof.numbers, tmp_path)
    assert path is not None
    trace = read_trace(path)
    assert trace.violation is not None
    assert trace.violation.rule == rule
    assert len(trace.steps) == 4
