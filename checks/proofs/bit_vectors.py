"""Claims about bounded numbers as bit-vectors: a solver for circuits decides them far faster.

Every term gets the same width, enough for the largest value that any part of the claim can take, so
nothing overflows and the answer is that of the integers.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import z3

from checks.proofs.abstraction import parts_first

Range = tuple[int, int]  # least and largest value
Term = Any  # the solver ships no usable types


def as_bit_vectors(claim: Term, tops: Mapping[str, int]) -> tuple[Term, dict[str, Term]]:
    """The claim about bit-vectors, and its variables by name; each is from 0 to its top.

    Raises:
        ValueError: an operation that has no counterpart, such as a division by no power of two.
    """
    terms = list(parts_first(z3.simplify(claim)))
    width = _width(terms, tops)
    variables = {name: z3.BitVec(name, width) for name in tops}
    made: dict[int, Term] = {}
    for term in terms:
        parts = [made[part.get_id()] for part in term.children()]
        made[term.get_id()] = _translated(term, parts, width)
    limits = [z3.And(one >= 0, one <= tops[name]) for name, one in variables.items()]
    return z3.And(made[terms[-1].get_id()], *limits), variables


def _width(terms: Sequence[Term], tops: Mapping[str, int]) -> int:
    """Bits for every value that a term can take, and for the sum of all variables, with a sign."""
    ranges: dict[int, Range] = {}
    for term in terms:
        if z3.is_int(term):
            parts = [ranges[part.get_id()] for part in term.children() if z3.is_int(part)]
            ranges[term.get_id()] = _range_of(term, parts, tops)
    largest = max(max(-least, most) for least, most in ranges.values())
    return max(largest, sum(tops.values())).bit_length() + 1


def _range_of(term: Term, parts: Sequence[Range], tops: Mapping[str, int]) -> Range:
    """The values that an integer term can take, by those of its parts."""
    if z3.is_int_value(term):
        return term.as_long(), term.as_long()
    if z3.is_const(term):
        return 0, tops[str(term)]
    kind = term.decl().kind()
    if kind == z3.Z3_OP_ADD:
        return sum(least for least, _ in parts), sum(most for _, most in parts)
    if kind == z3.Z3_OP_MUL:
        found = parts[0]
        for other in parts[1:]:
            products = [one * factor for one in found for factor in other]
            found = min(products), max(products)
        return found
    if kind == z3.Z3_OP_ITE:
        return min(least for least, _ in parts), max(most for _, most in parts)
    if kind == z3.Z3_OP_IDIV:
        bits = _bits_of_divisor(term)
        return parts[0][0] >> bits, parts[0][1] >> bits
    if kind == z3.Z3_OP_MOD:
        return 0, (1 << _bits_of_divisor(term)) - 1
    raise ValueError(f"no bit-vector for {term.decl()}")


def _bits_of_divisor(term: Term) -> int:
    divisor = term.arg(1)
    if not z3.is_int_value(divisor) or divisor.as_long().bit_count() != 1:
        raise ValueError(f"a division by {divisor}, which is no power of two")
    return int(divisor.as_long()).bit_length() - 1


_COMPARISONS: dict[int, Callable[[Term, Term], Term]] = {
    z3.Z3_OP_LE: lambda one, other: one <= other,
    z3.Z3_OP_LT: lambda one, other: one < other,
    z3.Z3_OP_GE: lambda one, other: one >= other,
    z3.Z3_OP_GT: lambda one, other: one > other,
}


def _translated(term: Term, parts: Sequence[Term], width: int) -> Term:
    """The term with its parts, which are translated already."""
    kind = term.decl().kind()
    if z3.is_int(term):
        return _number(term, kind, parts, width)
    if kind in _COMPARISONS:
        return _COMPARISONS[kind](*parts)
    if kind == z3.Z3_OP_EQ:
        return parts[0] == parts[1]
    return term.decl()(*parts) if parts else term


def _number(term: Term, kind: int, parts: Sequence[Term], width: int) -> Term:
    if z3.is_int_value(term):
        return z3.BitVecVal(term.as_long(), width)
    if z3.is_const(term):
        return z3.BitVec(str(term), width)
    if kind == z3.Z3_OP_ITE:
        return z3.If(*parts)
    if kind == z3.Z3_OP_IDIV:
        return parts[0] >> _bits_of_divisor(term)
    if kind == z3.Z3_OP_MOD:
        return parts[0] & ((1 << _bits_of_divisor(term)) - 1)
    found = parts[0]
    for other in parts[1:]:
        found = found + other if kind == z3.Z3_OP_ADD else found * other
    return found
