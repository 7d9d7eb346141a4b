"""Formulas of the specification as straight-line source, printed from the prover's terms.

A formula is called with solver terms for its numbers, as the prover calls it, and the resulting
term is printed, one line for each distinct operation. So the compiled formula is the proven one.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import z3
from attrs import frozen

from checks.explore.compiled.jit import compiled

Term = Any  # the solver ships no usable types

_JOINED = {
    z3.Z3_OP_ADD: "+",
    z3.Z3_OP_SUB: "-",
    z3.Z3_OP_MUL: "*",
    z3.Z3_OP_IDIV: "//",  # the same as the solver's for a positive divisor
    z3.Z3_OP_LE: "<=",
    z3.Z3_OP_LT: "<",
    z3.Z3_OP_GE: ">=",
    z3.Z3_OP_GT: ">",
    z3.Z3_OP_EQ: "==",
    z3.Z3_OP_AND: "&",
    z3.Z3_OP_OR: "|",
}


@frozen(kw_only=True)
class Formula:
    """A function of numbers, to be compiled under a name.

    `function` takes a list for each of the `columns`, with one number for each row, and then the
    numbers named by `parameters`. It is printed once for each number of rows in `rows`. The
    compiled function takes the columns as arrays, the number of rows, and the parameters.
    """

    name: str
    function: Callable[..., Term]
    parameters: Sequence[str]
    columns: Sequence[str] = ()
    rows: range = range(1)

    @property
    def source(self) -> str:
        """The formula as functions of a module that has `compiled`."""
        if not self.columns:
            return self._for_rows(self.name, 0)
        parts = [self._for_rows(f"{self.name}_{rows}", rows) for rows in self.rows]
        return "\n\n".join([*parts, self._for_any_rows()])

    def _for_rows(self, name: str, rows: int) -> str:
        columns = [[f"{column}_{row}" for row in range(rows)] for column in self.columns]
        numbers = [*chain.from_iterable(columns), *self.parameters]
        term = self.function(
            *(list(map(z3.Int, column)) for column in columns),
            *map(z3.Int, self.parameters),
        )
        return f"@compiled\ndef {name}({', '.join(numbers)}):\n{_body(term)}"

    def _for_any_rows(self) -> str:
        arguments = ", ".join([*self.columns, "rows", *self.parameters])
        lines = [f"@compiled\ndef {self.name}({arguments}):"]
        for rows in self.rows:
            places = [f"{column}[{row}]" for column in self.columns for row in range(rows)]
            called = f"{self.name}_{rows}({', '.join([*places, *self.parameters])})"
            is_last = rows == self.rows[-1]
            lines.append(f"    return {called}" if is_last else f"    if rows == {rows}:")
            lines += [] if is_last else [f"        return {called}"]
        return "\n".join(lines) + "\n"


@frozen
class Choice:
    """Formulas with the same parameters; the first argument is the number of the one to call."""

    name: str
    formulas: Sequence[Formula]

    @property
    def source(self) -> str:
        """The formulas, and the function that calls one of them."""
        first = self.formulas[0]
        arguments = ", ".join([*first.columns, *["rows"][: len(first.columns)], *first.parameters])
        lines = [f"@compiled\ndef {self.name}(number, {arguments}):"]
        for number, formula in enumerate(self.formulas[:-1]):
            lines += [f"    if number == {number}:", f"        return {formula.name}({arguments})"]
        lines.append(f"    return {self.formulas[-1].name}({arguments})\n")
        return "\n\n".join([*(formula.source for formula in self.formulas), "\n".join(lines)])


def module_source(about: str, formulas: Sequence[Formula | Choice]) -> str:
    """A module of these formulas."""
    head = f'"""{about}"""\n\nfrom {compiled.__module__} import compiled\n'
    return "\n\n".join([head, *(formula.source for formula in formulas)])


def _body(term: Term) -> str:
    """The body of a function that computes a term, its operands first."""
    if not z3.is_expr(term):
        return f"    return {term}\n"
    lines: list[str] = []
    names: dict[int, str] = {}
    pending = [term]
    while pending:
        part = pending[-1]
        unnamed = [operand for operand in part.children() if operand.get_id() not in names]
        if unnamed:
            pending += unnamed
            continue
        pending.pop()
        if part.get_id() not in names:
            text = _operation(part, [names[operand.get_id()] for operand in part.children()])
            names[part.get_id()] = f"x{len(lines)}" if part.children() else text
            lines += [f"    x{len(lines)} = {text}"] if part.children() else []
    return "\n".join([*lines, f"    return {names[term.get_id()]}"]) + "\n"


def _operation(part: Term, operands: Sequence[str]) -> str:
    """One operation in Python.

    Raises:
        ValueError: this operation cannot be printed; no formula of the specification uses it.
    """
    kind = part.decl().kind()
    if z3.is_int_value(part):
        return str(part.as_long())
    if z3.is_true(part) or z3.is_false(part):
        return str(z3.is_true(part))
    if kind == z3.Z3_OP_UNINTERPRETED and not operands:
        return str(part.decl().name())
    if kind in _JOINED:
        return f" {_JOINED[kind]} ".join(operands)
    match kind, operands:
        case z3.Z3_OP_NOT, [operand]:
            return f"not {operand}"
        case z3.Z3_OP_UMINUS, [operand]:
            return f"-{operand}"
        case z3.Z3_OP_ITE, [condition, then, otherwise]:
            return f"{then} if {condition} else {otherwise}"
    raise ValueError(f"{part.decl().name()} cannot be printed")
