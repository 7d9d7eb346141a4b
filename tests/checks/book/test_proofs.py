"""Pages of proofs: the claim as source text, and as a formula where that is short."""

from pathlib import Path

import pytest
from inline_snapshot import snapshot

from checks.book.drawing import Films
from checks.book.formula import formula_text
from checks.book.proofs import citations, proof_pages
from checks.book.refuted import refuted_claims
from checks.evidence import PROVEN, proofs_of, recorded
from checks.export.trace.reading import read_trace
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.registry import Proof, Verdict

NO_FILMS = Films({}, {})


def test_a_short_claim_is_written_in_mathematics() -> None:
    assert formula_text(OBLIGATIONS["PRV-DEC-5"]) == snapshot("""\
for all integers block_size, row with
    row ≥ 1
    block_size ≥ 1
holds
    (⌈row / block_size⌉ - 1) · block_size < row
    row ≤ ⌈row / block_size⌉ · block_size
    row - (⌈row / block_size⌉ - 1) · block_size ≥ 1
    row - (⌈row / block_size⌉ - 1) · block_size ≤ block_size\
""")
    assert formula_text(OBLIGATIONS["PRV-NANO-ADM-2"]) == snapshot("""\
for all integers blocks, free, revived, shared with
    free ≥ 0
    shared ≥ 0
    revived ≥ 0
    (blocks - shared) - revived ≥ 0
holds
    free ≥ blocks ⇒ (free - revived) - ((blocks - shared) - revived) ≥ 0
    free ≥ blocks - shared ⇔ (free - revived) - ((blocks - shared) - revived) ≥ 0\
""")


def test_the_larger_of_two_is_named() -> None:
    assert "max(longest, furthest)" in str(formula_text(OBLIGATIONS["PRV-LEN-1"]))


def test_a_claim_too_long_to_be_read_is_omitted() -> None:
    assert formula_text(OBLIGATIONS["PRV-ANY-3B"]) is None


def test_what_a_claim_rests_on_is_read_from_its_code() -> None:
    assert "PRV-ANY-4" in citations(OBLIGATIONS["PRV-ANY-3B"])


def test_the_time_of_a_proof_is_shown_where_the_record_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proof = Proof("PRV-DEC-5", Verdict.PROVEN, seconds=2.34)
    monkeypatch.setattr("checks.book.proofs.recorded", lambda _: proofs_of([proof]))
    timed = {page.path: page.text for page in proof_pages({}, NO_FILMS)}["proofs/PRV-DEC-5.md"]
    without = proofs_of([proof])
    del without["PRV-DEC-5"]["seconds"]
    monkeypatch.setattr("checks.book.proofs.recorded", lambda _: without)
    untimed = {page.path: page.text for page in proof_pages({}, NO_FILMS)}["proofs/PRV-DEC-5.md"]

    assert "**Time when recorded:** 2.3 s of one processor" in timed
    assert "Time when recorded" not in untimed


@pytest.mark.thorough
def test_a_refuted_claim_shows_its_numbers_and_a_run_to_click(tmp_path: Path) -> None:
    claims = {claim.id: claim for claim in refuted_claims(tmp_path)}
    names = [claim.trace.name for claim in claims.values() if claim.trace]
    films = Films(dict.fromkeys(names, 3), dict.fromkeys(names, "live=x"))
    pages = {page.path: page.text for page in proof_pages(claims, films)}
    page = pages["proofs/PRV-VOL-1.md"]

    assert claims.keys() == {
        id_ for id_, proof in recorded(PROVEN).items() if proof["verdict"] == "refuted"
    }
    assert "limit = 6" in page
    assert 'name="refuted" src="../steps/prv-vol-1.js" at="3"' in page
    assert "(../runs/prv-vol-1.jsonl)" in page
    violation = read_trace(tmp_path / "prv-vol-1.jsonl").violation
    assert violation is not None
    assert violation.rule == "SPY-VOL-1"
    assert {id_ for id_, claim in claims.items() if not claim.trace} == {
        "PRV-TIG-3",
        "PRV-V1-SPC-5",
    }
    assert "computed = 0" in pages["proofs/PRV-V1-SPC-5.md"]
    assert "refutes it" not in pages["proofs/PRV-DEC-5.md"]
