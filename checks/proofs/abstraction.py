"""Abstraction of products and quotients: the solver sees them as unknown functions.

Many claims follow merely because equal numbers have equal products and quotients. The solver proves
these at once if it knows no more about the functions; and a claim that is true for any functions is
true for multiplication and division.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import z3

Term = Any  # the solver ships no usable types
_NUMBERS = (z3.IntSort(), z3.IntSort(), z3.IntSort())
_FUNCTIONS = {
    z3.Z3_OP_MUL: z3.Function("product", *_NUMBERS),
    z3.Z3_OP_IDIV: z3.Function("quotient", *_NUMBERS),
    z3.Z3_OP_MOD: z3.Function("remainder", *_NUMBERS),
}
_SMALL = range(5)  # factors, such as the number of a few rows, whose products are computed


def without_products(claim: Term) -> Term:
    """The claim with unknown functions for products and quotients of two variable numbers.

    Products are known to be commutative, and known if one factor is `_SMALL`. If no numbers satisfy
    the result, none satisfy the claim.
    """
    made: dict[int, Term] = {}
    axioms: list[Term] = []
    for term in parts_first(claim):
        parts = [made[part.get_id()] for part in term.children()]
        made[term.get_id()] = _translated(term, parts, axioms)
    return z3.And(made[claim.get_id()], *axioms)


def parts_first(claim: Term) -> Iterator[Term]:
    """Every term of the claim once, after its parts."""
    seen: set[int] = set()
    pending = [(claim, False)]
    while pending:
        term, is_ready = pending.pop()
        if is_ready:
            yield term
        elif term.get_id() not in seen:
            seen.add(term.get_id())
            pending.append((term, True))
            pending += [(part, False) for part in term.children()]


def _translated(term: Term, parts: Sequence[Term], axioms: list[Term]) -> Term:
    """The term with its translated parts."""
    kind = term.decl().kind()
    if kind == z3.Z3_OP_MUL and sum(not z3.is_int_value(part) for part in parts) > 1:
        product, *others = parts
        for other in others:
            product = _product(product, other, axioms)
        return product
    if kind in (z3.Z3_OP_IDIV, z3.Z3_OP_MOD) and not z3.is_int_value(parts[1]):
        return _FUNCTIONS[kind](*parts)
    return term.decl()(*parts) if parts else term


def _product(factor: Term, other: Term, axioms: list[Term]) -> Term:
    function = _FUNCTIONS[z3.Z3_OP_MUL]
    product = function(factor, other)
    axioms.append(product == function(other, factor))
    for small in _SMALL:
        axioms.append(z3.Implies(factor == small, product == small * other))
        axioms.append(z3.Implies(other == small, product == small * factor))
    return product
