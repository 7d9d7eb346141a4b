"""A question with less arithmetic in it: what is multiplied and divided is not looked into.

Where a claim follows because equal numbers have equal products and quotients, the solver finds out
at once if it knows no more about them; and what is true of any two functions is true of these.
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
_SMALL = range(5)  # factors, such as a count of few rows, of which the product is known


def without_products(claim: Term) -> Term:
    """The claim with any functions instead of products and quotients of two variable numbers.

    Of products it is known that their factors can change places, and what they are where one factor
    is `_SMALL`. If no numbers satisfy this, none satisfy the claim.
    """
    made: dict[int, Term] = {}
    known: list[Term] = []
    for term in parts_first(claim):
        parts = [made[part.get_id()] for part in term.children()]
        made[term.get_id()] = _translated(term, parts, known)
    return z3.And(made[claim.get_id()], *known)


def parts_first(claim: Term) -> Iterator[Term]:
    """Every term of the claim once, behind its parts."""
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


def _translated(term: Term, parts: Sequence[Term], known: list[Term]) -> Term:
    """The term with its parts, which are translated already."""
    kind = term.decl().kind()
    if kind == z3.Z3_OP_MUL and sum(not z3.is_int_value(part) for part in parts) > 1:
        product, *others = parts
        for other in others:
            product = _product(product, other, known)
        return product
    if kind in (z3.Z3_OP_IDIV, z3.Z3_OP_MOD) and not z3.is_int_value(parts[1]):
        return _FUNCTIONS[kind](*parts)
    return term.decl()(*parts) if parts else term


def _product(one: Term, other: Term, known: list[Term]) -> Term:
    function = _FUNCTIONS[z3.Z3_OP_MUL]
    product = function(one, other)
    known.append(product == function(other, one))
    for small in _SMALL:
        known.append(z3.Implies(one == small, product == small * other))
        known.append(z3.Implies(other == small, product == small * one))
    return product
