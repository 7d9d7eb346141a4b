"""The claim of an obligation as a formula, written from the solver's terms if they are short."""

from collections.abc import Callable, Sequence

import z3
from attrs import define, field

from checks.proofs.registry import Obligation

_MOST = 140  # terms of a formula that is printed
_LOOSEST = 0
_SIGNS: dict[int, tuple[str, int]] = {  # infix sign and precedence
    z3.Z3_OP_LE: ("≤", 4),
    z3.Z3_OP_LT: ("<", 4),
    z3.Z3_OP_GE: ("≥", 4),
    z3.Z3_OP_GT: (">", 4),
    z3.Z3_OP_EQ: ("=", 4),
    z3.Z3_OP_DISTINCT: ("≠", 4),
    z3.Z3_OP_IFF: ("⇔", 1),
    z3.Z3_OP_AND: ("∧", 3),
    z3.Z3_OP_OR: ("\N{LOGICAL OR}", 2),
    z3.Z3_OP_ADD: ("+", 5),
    z3.Z3_OP_SUB: ("-", 5),
    z3.Z3_OP_MUL: ("·", 6),
    z3.Z3_OP_MOD: ("mod", 6),
}

_ORDERS = (z3.Z3_OP_LE, z3.Z3_OP_LT, z3.Z3_OP_GE, z3.Z3_OP_GT)


class _TooLongError(Exception):
    """The formula has more than _MOST terms."""


def formula_text(obligation: Obligation) -> str | None:
    """The assumptions and the claim, a line each; None if they are too long or have no text."""
    if obligation.every is not None:
        return None
    try:
        statement = obligation.statement(z3.Int)
        if statement.rows is not None or statement.parts:
            return None
        writing = _Writing()
        assumptions = [line for formula in statement.given for line in _conjuncts(formula)]
        lines = [writing.term(formula) for formula in assumptions]
        claims = [writing.term(formula) for formula in _conjuncts(statement.claim)]
    except (_TooLongError, TypeError, ValueError, LookupError, z3.Z3Exception):
        return None
    of = ", ".join(sorted(writing.names))
    before = [f"for all integers {of} with", *(f"    {line}" for line in lines)]
    return "\n".join([*before, "holds", *(f"    {line}" for line in claims)])


def _conjuncts(term: object) -> list[z3.ExprRef]:
    """The conjuncts of a term; a plain boolean has none."""
    if not isinstance(term, z3.ExprRef):
        return []
    if z3.is_and(term):
        return [piece for child in term.children() for piece in _conjuncts(child)]
    return [term]


@define
class _Writing:
    """Writes terms as text; `names`: the integer variables in them."""

    names: set[str] = field(factory=set)
    _written: int = 0

    def term(self, term: z3.ExprRef, binds: int = _LOOSEST) -> str:
        """A term, in parentheses if the context binds more tightly."""
        self._written += 1
        if self._written > _MOST:
            raise _TooLongError
        kind, parts = term.decl().kind(), term.children()
        if kind == z3.Z3_OP_UNINTERPRETED and not parts:
            self.names.add(str(term))
            return str(term)
        if kind == z3.Z3_OP_NOT:
            return self._negation(parts[0])
        if kind == z3.Z3_OP_OR and z3.is_not(parts[0]):
            sides = [parts[0].children()[0], z3.Or(parts[1:]) if len(parts) > 2 else parts[1]]
            return self._joined(sides, "⇒", 1, binds)
        if kind == z3.Z3_OP_IMPLIES:
            return self._joined(parts, "⇒", 1, binds)
        if kind == z3.Z3_OP_ITE:
            return self._choice(*parts)
        if kind in (z3.Z3_OP_IDIV, z3.Z3_OP_DIV):
            return self._quotient(parts)
        if kind in _SIGNS:
            is_truth = kind == z3.Z3_OP_EQ and z3.is_bool(parts[0])
            sign, own = _SIGNS[z3.Z3_OP_IFF if is_truth else kind]
            return self._joined(parts, sign, own, binds)
        if parts:
            raise _TooLongError
        return str(term)

    def _joined(self, parts: Sequence[z3.ExprRef], sign: str, own: int, binds: int) -> str:
        text = f" {sign} ".join(self.term(part, own + 1) for part in parts)
        return f"({text})" if own < binds else text

    def _negation(self, part: z3.ExprRef) -> str:
        """The negation; a comparison is inverted."""
        turned: dict[int, Callable[..., z3.ExprRef]] = {
            z3.Z3_OP_LE: lambda left, other: left > other,
            z3.Z3_OP_LT: lambda left, other: left >= other,
            z3.Z3_OP_GE: lambda left, other: left < other,
            z3.Z3_OP_GT: lambda left, other: left <= other,
            z3.Z3_OP_EQ: lambda left, other: left != other,
        }
        turn = turned.get(part.decl().kind())
        return self.term(turn(*part.children()), 4) if turn else f"¬ {self.term(part, 7)}"

    def _choice(self, condition: z3.ExprRef, chosen: z3.ExprRef, other: z3.ExprRef) -> str:
        """An if-then-else; a choice of the larger or smaller term as max or min."""
        compared = condition.children()
        kind = condition.decl().kind()
        if kind in _ORDERS and any(map(compared[0].eq, (chosen, other))):
            is_first = compared[0].eq(chosen)
            if compared[1].eq(other if is_first else chosen):
                is_less = kind in (z3.Z3_OP_LE, z3.Z3_OP_LT)
                name = "min" if is_less == is_first else "max"
                return f"{name}({self.term(chosen)}, {self.term(other)})"
        return f"({self.term(chosen)} if {self.term(condition)} else {self.term(other)})"

    def _quotient(self, parts: Sequence[z3.ExprRef]) -> str:
        """A quotient, rounded down, or up if it is written as (a + b - 1) / b."""
        whole, divisor = parts
        less = z3.simplify(whole - divisor + 1)
        shorter = _size(less) < _size(z3.simplify(whole))
        if shorter:
            return f"⌈{self.term(less, 6)} / {self.term(divisor, 7)}⌉"
        return f"⌊{self.term(whole, 6)} / {self.term(divisor, 7)}⌋"


def _size(term: z3.ExprRef) -> int:
    return 1 + sum(map(_size, term.children()))
