"""Mutation operators: one table of small changes to a syntax tree.

Each operator yields, for one node, the nodes that may replace it. Texts, annotations and error
messages are not changed, since the result would be unlike any program that people write; nor are
guards (see `checks.mutants.sites`).
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from itertools import pairwise
from typing import Any, TypeAlias

Operator: TypeAlias = Callable[[Any], Iterator[ast.AST]]

_COMPARISONS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_ARITHMETIC: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
OPPOSITES = {
    name: opposite
    for pair in (
        ("min", "max"),
        ("minimum", "maximum"),
        ("any", "all"),
        ("every", "some"),
        ("cdiv", "floor_div"),
        ("append", "appendleft"),
        ("pop", "popleft"),
    )
    for name, opposite in (pair, pair[::-1])
}
_ORDERS = {"sorted", "reversed"}  # removing it changes the order of the elements
_SYMMETRIC = {"min", "max", "minimum", "maximum", "chain", "zip"}  # of equal arguments
_REPLACING = {"evolve"}  # sets fields; the mutant leaves one of them unchanged


def mutations(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Each operator that applies to the node, by name, with each of its replacements."""
    for name, (kinds, operator) in OPERATORS.items():
        if isinstance(node, kinds):
            for new in operator(node):
                yield name, ast.copy_location(new, node)


def _with(node: Any, **fields: Any) -> Any:
    """A copy of the node with other fields."""
    changed = copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _without(values: list[Any], index: int) -> list[Any]:
    return [*values[:index], *values[index + 1 :]]


def _function_name(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _renamed(function: Any, name: str) -> ast.expr:
    key = "id" if isinstance(function, ast.Name) else "attr"
    renamed: ast.expr = _with(function, **{key: name})
    return renamed


# --- operators ------------------------------------------------------------------------------------


def _other_comparison(node: ast.Compare) -> Iterator[ast.AST]:
    """An inequality becomes strict or non-strict; any other comparison is negated."""
    for index, op in enumerate(node.ops):
        other = _COMPARISONS[type(op)]()
        yield _with(node, ops=[*node.ops[:index], other, *node.ops[index + 1 :]])


def _other_constant(node: ast.Constant) -> Iterator[ast.AST]:
    """A truth value is negated; an integer is one more, and one less."""
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield ast.Constant(node.value + 1)
        yield ast.Constant(node.value - 1)


def _other_arithmetic(node: ast.BinOp) -> Iterator[ast.AST]:
    """Another operation on the same operands."""
    if type(node.op) in _ARITHMETIC:
        yield _with(node, op=_ARITHMETIC[type(node.op)]())


def _dropped_term(node: ast.BinOp | ast.BoolOp | ast.Tuple | ast.Call) -> Iterator[ast.AST]:
    """One operand less: of a sum, a condition, a joined queue, a minimum or a maximum."""
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            yield left
            if isinstance(op, (ast.Add, ast.BitOr, ast.BitAnd)):
                yield right
        case ast.BoolOp(values=values):
            for index in range(len(values)):
                left_over = _without(values, index)
                yield left_over[0] if len(left_over) == 1 else _with(node, values=left_over)
        case ast.Tuple(elts=elements) if _is_joined(node):
            for index in range(len(elements)):
                yield _with(node, elts=_without(elements, index))
        case ast.Call(func=function, args=[_, _, *_]) if _function_name(function) in _SYMMETRIC - {
            "zip"
        }:
            for index in range(len(node.args)):
                yield _with(node, args=_without(node.args, index))


def _is_joined(node: ast.Tuple) -> bool:
    return isinstance(node.ctx, ast.Load) and any(isinstance(e, ast.Starred) for e in node.elts)


def _other_logic(node: ast.AST) -> Iterator[ast.AST]:
    """`or` instead of `and` and the reverse, or a negated condition."""
    match node:
        case ast.BoolOp(op=op):
            yield _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if _is_plain(test):
            yield _with(node, test=ast.copy_location(ast.UnaryOp(ast.Not(), test), test))


def _is_plain(test: ast.expr) -> bool:
    """True if no other operator negates the condition."""
    return not isinstance(test, (ast.Compare, ast.BoolOp, ast.UnaryOp))


def _dropped_filter(node: ast.comprehension) -> Iterator[ast.AST]:
    """All elements, without the condition."""
    for index in range(len(node.ifs)):
        yield _with(node, ifs=_without(node.ifs, index))


def _swapped_arguments(node: ast.Call) -> Iterator[ast.AST]:
    """Two adjacent arguments, swapped."""
    if _function_name(node.func) in _SYMMETRIC:
        return
    for index, pair in enumerate(pairwise(node.args)):
        if not any(isinstance(argument, ast.Starred) for argument in pair):
            swapped = [*node.args[:index], *pair[::-1], *node.args[index + 2 :]]
            yield _with(node, args=swapped)


def _other_function(node: ast.Call) -> Iterator[ast.AST]:
    """The opposite function (min and max, any and all, both ends), or no sorting."""
    name = _function_name(node.func)
    if name in OPPOSITES:
        yield _with(node, func=_renamed(node.func, OPPOSITES[name]))
    if name in _ORDERS and node.args:
        yield _with(node, func=ast.copy_location(ast.Name("list", ast.Load()), node), keywords=[])


def _kept_field(node: ast.Call) -> Iterator[ast.AST]:
    """A call of `evolve` that sets one field less."""
    if _function_name(node.func) in _REPLACING:
        for index in range(len(node.keywords)):
            yield _with(node, keywords=_without(node.keywords, index))


def _other_end(node: ast.Subscript | ast.Tuple) -> Iterator[ast.AST]:
    """The last element for the first, a slice without a bound, or parts in another order."""
    match node:
        case ast.Subscript(slice=ast.Constant(value=0)):
            yield _with(node, slice=_negative_one())
        case ast.Subscript(slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1))):
            yield _with(node, slice=ast.Constant(0))
        case ast.Subscript(slice=ast.Slice(lower=lower, upper=upper)):
            if lower is not None:
                yield _with(node, slice=_with(node.slice, lower=None))
            if upper is not None:
                yield _with(node, slice=_with(node.slice, upper=None))
        case ast.Tuple(elts=[_, _, *_]) if _is_joined(node):
            for index in range(len(node.elts) - 1):
                swapped = [*node.elts]
                swapped[index : index + 2] = swapped[index : index + 2][::-1]
                yield _with(node, elts=swapped)


def _negative_one() -> ast.expr:
    return ast.UnaryOp(ast.USub(), ast.Constant(1))


def _skipped_statement(_node: ast.stmt) -> Iterator[ast.AST]:
    """`pass` instead of the statement; `checks.mutants.sites` decides which can be skipped."""
    yield ast.Pass()


OPERATORS: Mapping[str, tuple[Any, Operator]] = {
    "comparison": (ast.Compare, _other_comparison),
    "constant": (ast.Constant, _other_constant),
    "arithmetic": (ast.BinOp, _other_arithmetic),
    "term": ((ast.BinOp, ast.BoolOp, ast.Tuple, ast.Call), _dropped_term),
    "logic": ((ast.BoolOp, ast.UnaryOp, ast.If, ast.While, ast.IfExp), _other_logic),
    "filter": (ast.comprehension, _dropped_filter),
    "arguments": (ast.Call, _swapped_arguments),
    "function": (ast.Call, _other_function),
    "field": (ast.Call, _kept_field),
    "end": ((ast.Subscript, ast.Tuple), _other_end),
    "statement": (ast.stmt, _skipped_statement),
}
