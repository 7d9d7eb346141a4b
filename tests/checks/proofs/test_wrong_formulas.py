"""`prove` alone notices a wrong formula: an obligation is refuted or not proven, or all are stale.

Each change is one place of a formula of `spec/`, and each changes some run of the reference.
"""

from collections.abc import Iterator

import pytest

from checks.harness.case import Case
from checks.proofs import words
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.prover import prove
from checks.proofs.registry import Verdict
from checks.proofs.spyre.moves import large_case
from checks.proofs.vllm_v1 import moves as vllm_v1_moves
from spec.spyre.variants import Admission
from tests.checks.proofs.changes import Change, cases_of, changes_a_run

ADMISSION, PADDING = "spec.spyre.admission", "spec.spyre.padding"
RESERVATION, V1 = "spec.spyre.reservation", "spec.vllm_v1.config"
NANO, BLOCKS = "spec.nano_vllm.formulas", "spec.core.blocks"
ROWS, ARITHMETIC = "spec.core.rows", "spec.core.arithmetic"
WORDS = "words"  # the comparison of words, on which every proof rests
LINK = "link"  # the comparison of the reference with the moves

SPYRE_CHANGES = [
    Change(f"{ADMISSION}.{name}", text, instead, noticed_by)
    for name, text, instead, noticed_by in (
        ("decode_lives", "candidate.remaining - 1", "candidate.remaining", "PRV-DEF-1"),
        ("decode_lives", "candidate.remaining - 1", "candidate.remaining - 3", "PRV-DEF-1"),
        ("decode_lives", "Life(candidate.length,", "Life(1,", "PRV-DEF-1"),
        ("decode_lives", "candidate.length, candidate.remaining - 1", "1, 0", "PRV-ANY-3B"),
        ("decode_lives", "Life(member.length,", "Life(member.length - 1,", "PRV-DEF-1"),
        ("decode_lives", "member.remaining)", "member.remaining - 1)", "PRV-ANY-11"),
        ("rows_until", "life.length, own)", "life.length, own + 1)", "PRV-ANY-5A"),
        ("peak_volume_until", "life.steps >= steps", "life.steps > steps", "PRV-ANY-3A"),
        ("worst_case_volumes", "life.steps > 0", "life.steps > 1", "PRV-ANY-3A"),
        ("exact_volume_holds", "peak <= limit", "peak <= limit + 1", "PRV-ANY-3A"),
        ("exact_volume_holds", "peak <= limit", "peak < limit", "PRV-ANY-7A"),
        ("exact_volume_holds", "peak <= limit", "peak - 64 <= limit", "PRV-ANY-11"),
        ("projected_volumes", "other >= tkv", "other > tkv", "PRV-ANS-5"),
        ("shipped_row_futures", "member.remaining + 1", "member.remaining - 64", "PRV-ANS-2"),
        ("_projected_end", "+ block_size", "", "PRV-ANS-2"),
        ("shipped_volume_holds", "projected <= limit", "projected <= limit + 1", "PRV-ANS-6"),
        ("documented_volume_holds", "remaining + block_size", "remaining", "PRV-JDG-4"),
    )
] + [
    Change(f"{PADDING}.{name}", text, instead, noticed_by)
    for name, text, instead, noticed_by in (
        ("volume", "batch_size * tkv", "minimum(batch_size, 3) * tkv", "PRV-DEF-2"),
        ("volume", "batch_size * tkv", "batch_size * tkv - tkv", "PRV-DEF-2"),
        ("max_tkv", "- 1) * block_size + offset", ") * block_size", "PRV-DEF-4"),
        ("max_tkv", "+ offset", "+ minimum(offset, 3)", "PRV-DEF-4"),
        ("batch_width_blocks", "longest(lengths)", "longest(lengths) + 1", "PRV-DEF-3"),
        ("row_left_padding", "width_blocks - ", "width_blocks - 1 - ", "PRV-DEF-5"),
        ("last_block_offset", "- 1) * block_size", ") * block_size + 1", "PRV-DEC-5"),
        ("peak_tkv", "block_size + 1 -", "block_size + 2 -", "PRV-ANY-2A"),
        ("peak_tkv", "longest(lengths), 1)", "longest(lengths), 2)", "PRV-ANY-2A"),
        ("peak_tkv", "select(fills, width * block_size", "select(fills, 0", "PRV-ANY-2A"),
        ("peak_tkv", "length + first_at_width", "length + 1", "PRV-ANY-5A"),
        ("reaches_block_end", ">= first", "> first", "PRV-PEAK-1A"),
        ("left_padding", "round_up(prompt_len, block_size)", "prompt_len", "PRV-PAD-3"),
        ("chunk_end", "minimum(", "maximum(", "PRV-CHK-1"),
    )
] + [
    Change(f"{RESERVATION}.worst_case_blocks", "prefill_len + remaining", "prefill_len", "PRV-RES-4"),
    Change(f"{RESERVATION}.may_reserve", "free - reserved", "free", "PRV-RES-1"),
    Change(f"{RESERVATION}.still_promised", "promised - handed_out", "promised", "PRV-RES-2"),
    Change(f"{RESERVATION}.promised_blocks", "worst_case - held", "worst_case", "PRV-RES-1"),
    Change("spec.spyre.queue.chosen_from", "max_overtakes + 1", "max_overtakes + 2", "PRV-ALN-1"),
    Change(f"{ROWS}.largest_of", "maximum(*of_rows)", "maximum(*of_rows[:5])", WORDS),
    Change(f"{ROWS}.count_of", "in of_rows)", "in of_rows[:5])", WORDS),
    Change(f"{ROWS}.all_of", "else every(of_rows)", "else every(of_rows[:4])", WORDS),
    Change(f"{ROWS}.any_of", "negate(condition(row))", "condition(row)", WORDS),
    Change(f"{ARITHMETIC}.maximum", "return max(values)", "return max(values[:4])", WORDS),
    Change(f"{ARITHMETIC}.cdiv", "dividend + divisor - 1", "dividend + divisor", WORDS),
    Change(f"{BLOCKS}.block_count", "cdiv(length, block_size)", "cdiv(length + 1, block_size)", WORDS),
]  # fmt: skip
V1_CHANGES = [
    Change(f"{V1}.{name}", text, instead, noticed_by)
    for name, text, instead, noticed_by in (
        ("running_tokens", "max_model_len - computed - 1", "max_model_len", "PRV-V1-BUD-3"),
        ("running_tokens", "tokens + drafts - computed", "tokens - computed", LINK),
        ("running_tokens", "minimum(behind, budget,", "minimum(behind, budget + 1,", "PRV-V1-ANY-1"),
        ("waiting_tokens", ", budget)", ", budget + 1)", "PRV-V1-ANY-2"),
        ("capped_tokens", "threshold > 0", "threshold > 3", "PRV-V1-CHK-1"),
        ("hit_blocks_at_most", "div(tokens - 1", "div(tokens", "PRV-V1-KV-4"),
        ("slots_end", "tokens + lookahead", "tokens - 1", "PRV-V1-KV-2"),
        ("rolled_back", "drafts - accepted", "drafts", "PRV-V1-SPC-1"),
    )
] + [Change(f"{BLOCKS}.missing_blocks", "cdiv(end,", "floor_div(end,", "PRV-V1-KV-1")]
NANO_CHANGES = [
    Change(f"{NANO}.{name}", text, instead, noticed_by)
    for name, text, instead, noticed_by in (
        ("within_budget", "<= budget", "<= budget + 1", "PRV-NANO-ADM-1"),
        ("counted_tokens", "length - cached", "length - 2 * cached", "PRV-NANO-ANY-1B"),
        ("can_allocate", "blocks - shared", "blocks - shared - 1", "PRV-NANO-ADM-2"),
        ("starts_block", "(1 if", "(2 if", "PRV-NANO-DEC-1"),
        ("fills_block", "== 0", "== 1", "PRV-NANO-DEC-5"),
        ("can_append", "1, 0)", "0, 0)", "PRV-NANO-DEC-4"),
        ("lookup_blocks", "(1 if", "(0 if", "PRV-NANO-PFX-3"),
    )
]
CHANGES = {
    "spyre": SPYRE_CHANGES,
    "vllm-v1": V1_CHANGES,
    "nano-vllm": NANO_CHANGES,
}
TABLE = [(policy, change) for policy, changes in CHANGES.items() for change in changes]
FAST = {"PRV-DEF-1", "PRV-DEF-2", "PRV-DEF-4", "PRV-V1-ANY-1", "PRV-NANO-ADM-1", WORDS}
ALL = [
    pytest.param(
        policy,
        change,
        id=str(change),
        marks=() if change.noticed_by in FAST else pytest.mark.thorough,
    )
    for policy, change in TABLE
]


def cases(policy: str) -> Iterator[Case]:
    if policy == "spyre":
        return cases_of(policy, large_case, admission=Admission.DOCUMENTED)
    return cases_of(policy)


def test_there_are_forty_changes() -> None:
    assert len(TABLE) >= 40


@pytest.mark.parametrize(("policy", "change"), ALL)
def test_prove_alone_notices_a_wrong_formula(policy: str, change: Change) -> None:
    with change.planted():
        if change.noticed_by == WORDS:
            assert words.stale.__wrapped__() is not None
            return
        if change.noticed_by == LINK:
            assert vllm_v1_moves.LINK.stale() is not None
            return
        proof = prove(OBLIGATIONS[change.noticed_by], 20.0)

    assert proof.verdict in {Verdict.REFUTED, Verdict.UNKNOWN}
    if proof.verdict is Verdict.REFUTED:
        assert proof.numbers


@pytest.mark.thorough
@pytest.mark.parametrize(("policy", "change"), ALL)
def test_a_wrong_formula_changes_some_run(policy: str, change: Change) -> None:
    assert changes_a_run(change, cases(policy))
