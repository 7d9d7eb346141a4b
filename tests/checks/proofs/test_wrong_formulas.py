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
from spec.nano_vllm.config import Prefill
from spec.spyre.variants import Admission
from tests.checks.proofs.changes import Change, change_table, changes_a_run, drawn_cases

WORDS = "words"  # the comparison of words, on which every proof rests
LINK = "link"  # the comparison of the reference with the moves

CHANGES = change_table("formula_changes.toml")
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
        return drawn_cases(policy, large_case, admission=Admission.DOCUMENTED)
    drawn = drawn_cases(policy)
    if policy == "nano-vllm":  # where a prompt may be cut, a step of a wrong one may never end
        return (case for case in drawn if case.config.prefill is Prefill.WHOLE)
    return drawn


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
    drawn = [change.case(policy)] if change.requests else cases(policy)
    assert changes_a_run(change, drawn)
