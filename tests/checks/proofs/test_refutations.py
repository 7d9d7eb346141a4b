"""False claims are refuted with the smallest numbers, which run; repaired they are proven."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from attrs import evolve

from checks.export.trace.reading import read_trace
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.prover import prove
from checks.proofs.registry import Numbers, Verdict
from checks.proofs.scenario import write_scenario
from checks.proofs.spyre import documented, model_length, shipped
from checks.proofs.vllm_v1.drafts import padded_and_rolled_back
from reference.core.guards import GuardError
from reference.vllm_v1 import transitions
from reference.vllm_v1.kv_cache import Demand
from reference.vllm_v1.machine import VllmV1Machine
from reference.vllm_v1.transitions import Plan, admit
from spec.core.arithmetic import Number, Truth
from spec.spyre import admission
from spec.spyre.admission import Member
from spec.spyre.padding import max_tkv
from spec.vllm_v1.records import Context, State
from spec.vllm_v1.records import Sequence as V1Sequence
from tests.checks.command import lockstep
from tests.reference.scenes import arrived
from tests.reference.vllm_v1.scenes import machine
from tests.requests import request

PAIR = {"tokens_0": 2, "remaining_0": 1, "max_tokens": 2, "step": 1}
NUMBERS: dict[str, dict[str, int]] = {
    "PRV-VOL-1": PAIR | {"limit": 6, "prompt_len": 1},
    "PRV-SHP-4": {"limit": 16, "step": 1}
    | {"first_prompt": 4, "second_prompt": 1, "third_prompt": 1}
    | {"first_max_tokens": 2, "second_max_tokens": 2, "third_max_tokens": 2},
    "PRV-LEN-3": PAIR | {"max_model_len": 6, "prompt_len": 4},
    "PRV-LEN-4": PAIR | {"max_model_len": 6, "prompt_len": 4},
    "PRV-TIG-3": {"tokens_0": 1, "remaining_0": 1, "max_tokens": 2}
    | {"limit": 2, "spare": 0, "prompt_len": 1},
    "PRV-NANO-DEC-2": {"block_size": 2, "computed": 2},
    "PRV-NANO-DEC-3": {"block_size": 2, "computed": 1},
    "PRV-NANO-DEC-7": {"block_size": 2, "num_blocks": 1, "computed": 2, "total": 4},
    "PRV-NANO-PFX-2": {"batched": 2, "budget": 4, "length": 3, "cached": 2},
    "PRV-NANO-PFX-4": {"block_size": 2, "length": 2},
    "PRV-NANO-GRA-3": {"max_num_seqs": 9, "batch": 9},
    "PRV-V1-SPC-5": {"computed": 0, "drafts": 2, "threshold": 1},
}


def test_exactly_these_claims_are_refuted() -> None:
    refuted = {
        name for name, obligation in OBLIGATIONS.items() if obligation.expected is Verdict.REFUTED
    }
    assert refuted == NUMBERS.keys()


@pytest.mark.parametrize("name", NUMBERS)
def test_a_false_claim_is_refuted_with_the_smallest_numbers(name: str) -> None:
    proof = prove(OBLIGATIONS[name])
    assert (proof.verdict, proof.numbers) == (Verdict.REFUTED, NUMBERS[name])


# --- runs of the reference ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("PRV-VOL-1", "SPY-VOL-1"),
        ("PRV-SHP-4", "SPY-PAU-6"),
        ("PRV-LEN-3", "SPY-LEN-1"),
        ("PRV-LEN-4", "SPY-LEN-1"),
    ],
)
def test_the_numbers_of_a_refutation_break_the_rule_in_the_engine_too(
    name: str, rule: str, tmp_path: Path
) -> None:
    path = write_scenario(OBLIGATIONS[name], NUMBERS[name], tmp_path)
    assert path is not None
    violation = read_trace(path).violation
    assert violation is not None
    assert violation.rule == rule
    for target in ("reference", "engine"):
        ran = lockstep("replay", path, "--target", target)
        assert ran.code == 1
        assert f"{rule} is broken in step" in ran.out


@pytest.mark.parametrize(
    ("name", "rule", "found"),
    [
        # A block at the boundary comes too late for a prompt of whole blocks: no slot.
        ("PRV-NANO-DEC-2", "machine-error", "decode is not allowed here: NANO-SLT-1"),
        ("PRV-NANO-DEC-3", "NANO-DEC-3", "request 0: blocks [0], then [0, 1]"),
        ("PRV-NANO-DEC-7", "NANO-LIF-7", "no sequence scheduled, waiting [], running ['0']"),
        ("PRV-NANO-PFX-2", "NANO-PFX-7", "request 2 was refused, 2 and 1 new tokens"),
        ("PRV-NANO-PFX-4", "NANO-PFX-8", "request 1 computed 0 tokens in a prefill step"),
        ("PRV-NANO-GRA-3", "NANO-DEC-4", "9 sequences, captured size None"),
    ],
)
def test_the_numbers_of_a_refutation_break_the_rule_in_a_run_that_replays(
    name: str, rule: str, found: str, tmp_path: Path
) -> None:
    path = write_scenario(OBLIGATIONS[name], NUMBERS[name], tmp_path)
    assert path is not None
    ran = lockstep("replay", path)
    assert ran.code == 1
    *_, broken, _says, what, confirmed = ran.out.splitlines()
    assert broken == f"{rule} is broken in step 1"
    assert (what, confirmed) == (f"  found: {found}", "the violation is confirmed")


# --- repaired claims ------------------------------------------------------------------------------


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


@pytest.mark.thorough
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


# --- a rollback of the release --------------------------------------------------------------------


def padded_as_in_0_28_0(
    ctx: Context, plan: Plan, sequence: V1Sequence, demand: Demand, padding: int = 0
) -> Plan:
    """Every draft of a fresh request's padding is rolled back, cut or not."""
    is_fresh = sequence.tokens == 1 and bool(plan.scheduled)
    drafts = ctx.config.num_speculative_tokens if is_fresh else padding
    return admit(ctx, plan, sequence, demand, drafts)


def scene_of_a_cut(numbers: Numbers) -> tuple[VllmV1Machine, State]:
    """A prompt of one token arrives next to a decoding request; the threshold cuts its padding."""
    scene = machine(
        request("decoding", 1),
        request("fresh", numbers["computed"] + 1),
        num_speculative_tokens=numbers["drafts"],
        long_prefill_token_threshold=numbers["threshold"],
    )
    first = scene.step(arrived(scene, "decoding"))
    return scene, arrived(scene, "fresh", after=first.after)


def test_the_machine_takes_off_what_was_scheduled_and_the_release_more() -> None:
    """PRV-V1-SPC-5: 1 - 2 tokens computed by the release's rule, 1 by the machine's."""
    numbers = NUMBERS["PRV-V1-SPC-5"]
    scene, state = scene_of_a_cut(numbers)
    step = scene.step(state)
    assert step.scheduled == {"decoding": 1, "fresh": 1}
    assert step.after.running[-1].computed == 1
    assert padded_and_rolled_back(**numbers) == -1


def test_with_the_release_s_rule_the_machine_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would sample for a request that has not caught up."""
    monkeypatch.setattr(transitions, "admit", padded_as_in_0_28_0)
    scene, state = scene_of_a_cut(NUMBERS["PRV-V1-SPC-5"])
    with pytest.raises(GuardError, match="sample is not allowed here: V1-PRG-2"):
        scene.step(state)
