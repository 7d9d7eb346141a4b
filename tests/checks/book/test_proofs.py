"""Pages of proofs: the claim as it is written, and in mathematics where that is short."""

from inline_snapshot import snapshot

from checks.book.formula import formula_of
from checks.book.proofs import cites_of
from checks.proofs.obligations import OBLIGATIONS


def test_a_short_claim_is_written_in_mathematics() -> None:
    assert formula_of(OBLIGATIONS["PRV-DEC-5"]) == snapshot("""\
for all integers block_size, row with
    row ≥ 1
    block_size ≥ 1
holds
    (⌈row / block_size⌉ - 1) · block_size < row
    row ≤ ⌈row / block_size⌉ · block_size
    row - (⌈row / block_size⌉ - 1) · block_size ≥ 1
    row - (⌈row / block_size⌉ - 1) · block_size ≤ block_size\
""")
    assert formula_of(OBLIGATIONS["PRV-NANO-ADM-2"]) == snapshot("""\
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
    assert "max(longest, furthest)" in str(formula_of(OBLIGATIONS["PRV-LEN-1"]))


def test_a_claim_too_long_to_be_read_is_left_out() -> None:
    assert formula_of(OBLIGATIONS["PRV-ANY-3B"]) is None


def test_what_a_claim_rests_on_is_read_from_its_code() -> None:
    assert "PRV-ANY-4" in cites_of(OBLIGATIONS["PRV-ANY-3B"])
