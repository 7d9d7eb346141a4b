"""Bounded claims as bit-vectors: the same answers as the integers give."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import z3

from checks.proofs.bit_vectors import as_bit_vectors
from checks.proofs.prover import prove
from checks.proofs.registry import Integer, Obligation, Statement, Verdict
from spec.core.arithmetic import Number, Truth, floor_div, implies
from spec.core.blocks import block_count
from spec.spyre import padding

TOPS = {"one": 5, "other": 6}

CLAIMS: dict[str, Callable[[Number, Number], Truth]] = {
    "sums and differences": lambda one, other: 3 * one - 2 * other <= 4 - one,
    "products": lambda one, other: (one - 3) * (other - 2) * one > 7,
    "blocks": lambda one, other: block_count(one, 4) == block_count(other, 2),
    "division of what is negative": lambda one, other: floor_div(one - other, 4) < 0,
    "offsets": lambda one, other: (one - other) % 4 >= one,
    "max-tkv": lambda one, other: padding.max_tkv([one + 1, other + 1], 4) <= one + 3,
    "conditions": lambda one, other: implies(one > 2, other < one),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_bit_vectors_tell_true_from_false_as_integers_do(name: str) -> None:
    claim = CLAIMS[name]
    bits, variables = as_bit_vectors(claim(z3.Int("one"), z3.Int("other")), TOPS)
    answers = set()
    for values in product(*(range(top + 1) for top in TOPS.values())):
        chosen = [
            (variable, z3.BitVecVal(value, variable.size()))
            for variable, value in zip(variables.values(), values, strict=True)
        ]
        answer = z3.is_true(z3.simplify(z3.substitute(bits, *chosen)))
        assert answer == claim(*values), values
        answers.add(answer)
    assert answers == {True, False}


def test_numbers_beyond_their_top_are_not_looked_at() -> None:
    bits, variables = as_bit_vectors(z3.Int("one") > 5, TOPS)
    solver = z3.Solver()
    solver.add(bits)
    assert solver.check() == z3.unsat
    assert list(variables) == ["one", "other"]


@pytest.mark.parametrize("divisor", [3, z3.Int("other")])
def test_only_powers_of_two_divide(divisor: Any) -> None:
    with pytest.raises(ValueError, match="which is no power of two"):
        as_bit_vectors(z3.Int("one") / divisor == 1, TOPS)


@pytest.mark.parametrize(("largest", "verdict"), [(6, Verdict.PROVEN), (7, Verdict.REFUTED)])
def test_the_prover_decides_bounded_statements_and_finds_the_smallest_numbers(
    largest: int, verdict: Verdict
) -> None:
    def statement(integer: Integer) -> Statement:
        one, other = integer("one"), integer("other")
        tops = {"one": largest, "other": 9}
        given = [one <= tops["one"], other <= tops["other"]]
        return Statement(given=given, claim=one * other <= 54, tops=tops)

    proof = prove(Obligation("PRV-TEST", "Planted.", "all", (), statement))
    assert proof.verdict is verdict
    assert proof.numbers == ({"one": 7, "other": 8} if verdict is Verdict.REFUTED else {})
