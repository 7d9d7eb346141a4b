"""The mutated places: the functions of modules, without texts and guards.

Excluded are docstrings and texts, annotations, decorators and defaults, and guards: calls of
`require`, assertions, raised errors, values computed only for them, and `strict` of `zip`. A guard
never refuses anything in a right machine, so that nothing changes without it.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Set
from typing import Any, TypeAlias

from attrs import field, frozen

from checks.mutants.operators import mutations

Place: TypeAlias = tuple[Any, str, int | None]  # a node, its field, the index in the field

_SHOWN = 120  # characters of an expression


@frozen
class Mutant:
    """One change to one function.

    `path`: of the module, from the project's root. `function`: its qualified name. `change`: the
    old and the new text. `number` counts equal changes in a function, from 1. `lines`: those of the
    changed statement; a run of the mutant runs one of them.
    """

    path: str
    function: str
    line: int = field(eq=False)
    operator: str
    change: str
    number: int = 1
    lines: frozenset[int] = field(default=frozenset(), eq=False, repr=False)

    @property
    def room(self) -> str:
        """The room of its module."""
        return self.path.partition("/")[0]

    @property
    def id(self) -> str:
        """The id, which does not depend on line numbers."""
        again = f" #{self.number}" if self.number > 1 else ""
        return f"{self.path}:{self.function}:{self.operator}: {self.change}{again}"


def find_mutants(source: str, path: str) -> Iterator[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    return (mutant for mutant, _ in _changes(ast.parse(source), path))


def mutated(source: str, mutant: Mutant) -> ast.Module:
    """The syntax tree of the module with the change in it.

    Raises:
        KeyError: the module has no such mutant.
    """
    tree = ast.parse(source)
    for candidate, (place, new) in _changes(tree, mutant.path):
        if candidate == mutant:
            _put(place, new)
            return ast.fix_missing_locations(tree)
    raise KeyError(mutant.id)


def _put(place: Place, new: ast.AST) -> None:
    node, name, index = place
    if index is None:
        setattr(node, name, new)
    else:
        getattr(node, name)[index] = new


def _changes(tree: ast.Module, path: str) -> Iterator[tuple[Mutant, tuple[Place, ast.AST]]]:
    """Every mutant with its place in the tree and the new node; equal results only once."""
    for name, function in _functions(tree.body, ""):
        seen: Counter[str] = Counter()
        outcomes: set[tuple[int, str]] = set()
        statements = _statements(function)
        for place, node in _nodes(function, _guarding(function)):
            for operator, new in mutations(node):
                if operator == "statement" and not _can_be_skipped(node, place[0], function):
                    continue
                outcome = _with(place, node, new, statements.get(id(node), function))
                if outcome in outcomes:
                    continue
                outcomes.add(outcome)
                change = _change(place, node, new)
                seen[operator + change] += 1
                line = getattr(node, "lineno", function.lineno)
                number = seen[operator + change]
                lines = _header(statements.get(id(node), function)) | _header(node)
                yield Mutant(path, name, line, operator, change, number, lines), (place, new)


def _change(place: Place, node: ast.AST, new: ast.AST) -> str:
    """The old and the new text of a node; of a constant, those of the expression around it."""
    parent = place[0]
    if not isinstance(node, ast.Constant) or not isinstance(parent, ast.expr):
        return f"{_text(node)} -> {_text(new)}"
    before = _text(parent)
    _put(place, new)
    after = _text(parent)
    _put(place, node)
    return f"{before} -> {after}"


def _with(place: Place, node: ast.AST, new: ast.AST, around: ast.AST) -> tuple[int, str]:
    """The identity of the statement around the node, and its new text."""
    if node is around:
        return id(around), ast.unparse(new)
    _put(place, new)
    after = ast.unparse(around)
    _put(place, node)
    return id(around), after


def _text(node: ast.AST) -> str:
    """The node as one line; of a statement with a body only its head."""
    match node:
        case ast.If(test=test) | ast.While(test=test):
            text = f"{type(node).__name__.lower()} {ast.unparse(test)}"
        case ast.comprehension(target=target, iter=iter_, ifs=ifs):
            text = " if ".join(map(ast.unparse, [iter_, *ifs]))
            text = f"for {ast.unparse(target)} in {text}"
        case _:
            text = ast.unparse(node)
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"


# --- lines ----------------------------------------------------------------------------------------


def _statements(function: Any) -> dict[int, ast.stmt]:
    """The innermost statement that each node of a function is in, by the node's identity."""
    outer_first = (node for node in ast.walk(function) if isinstance(node, ast.stmt))
    return {id(node): statement for statement in outer_first for node in ast.walk(statement)}


def _header(node: Any) -> frozenset[int]:
    """The lines of a node, without those of the statements in it; none if it has no position."""
    if not hasattr(node, "lineno"):
        return frozenset()
    inside: list[Any] = [case.pattern for case in getattr(node, "cases", ())]
    inside += node.body if isinstance(node, ast.stmt) and hasattr(node, "body") else ()
    end = max(node.lineno, inside[0].lineno - 1) if inside else node.end_lineno
    return frozenset(range(node.lineno, end + 1))


# --- functions ------------------------------------------------------------------------------------


def _functions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Any]]:
    """The functions and methods of a module, and the lambdas of its tables, by name.

    Of a configuration class only its properties.
    """
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name):
                if not (name.startswith("__") and name.endswith("__")):
                    yield prefix + name, statement
            case ast.ClassDef(name=name, body=inner) if not _is_protocol(statement):
                inside = _functions(inner, f"{prefix}{name}.")
                is_config = name.endswith("Config")
                yield from (item for item in inside if not is_config or _is_property(item[1]))
            case ast.Assign() | ast.AnnAssign() if statement.value is not None:
                for node in ast.walk(statement.value):
                    if isinstance(node, ast.Lambda):
                        yield f"{prefix}<lambda>", node


def _is_protocol(node: ast.ClassDef) -> bool:
    return any("Protocol" in ast.unparse(base) for base in node.bases)


def _is_property(function: Any) -> bool:
    decorators = getattr(function, "decorator_list", ())
    return any(ast.unparse(name) in ("property", "cached_property") for name in decorators)


def _nodes(function: Any, excluded: Set[int]) -> Iterator[tuple[Place, ast.AST]]:
    """The nodes of a function that can be changed, each with its place, outer nodes first."""
    if isinstance(function, ast.Lambda):
        yield (function, "body", None), function.body
        yield from _below(function.body, excluded)
        return
    for index, statement in enumerate(function.body):
        if id(statement) not in excluded and not _is_text(statement):
            yield (function, "body", index), statement
            yield from _below(statement, excluded)


_EXCLUDED_FIELDS = {"annotation", "returns", "decorator_list", "args", "type_params"}
_EXCLUDED = (ast.Raise, ast.Assert, ast.JoinedStr)


def _below(node: ast.AST, excluded: Set[int]) -> Iterator[tuple[Place, ast.AST]]:
    for name, value in ast.iter_fields(node):
        is_definition = isinstance(node, (ast.FunctionDef, ast.Lambda, ast.AnnAssign))
        if is_definition and name in _EXCLUDED_FIELDS:
            continue
        listed = value if isinstance(value, list) else [value]
        for index, child in enumerate(listed):
            if not isinstance(child, ast.AST) or isinstance(child, _EXCLUDED):
                continue
            if id(child) in excluded or _is_text(child) or _is_guard(child):
                continue
            yield (node, name, index if isinstance(value, list) else None), child
            yield from _below(child, excluded)


def _is_text(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Constant(value=str())) | ast.Constant(value=str()):
            return True
    return False


# --- guards ---------------------------------------------------------------------------------------


def _is_guard(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=call):
            return _is_guard(call)
        case ast.Call(func=ast.Name(id=name)):
            return name.startswith("require")
        case ast.keyword(arg="strict"):
            return True
    return isinstance(node, (ast.Raise, ast.Assert))


def _guarding(function: Any) -> Set[int]:
    """The guard statements of a function, and assignments to names that only guards use."""
    if isinstance(function, ast.Lambda):
        return frozenset()
    guards = {id(statement) for statement in function.body if _is_guard(statement)}
    inside = {
        id(name)
        for node in ast.walk(function)
        if _is_guard(node)
        for name in ast.walk(node)
        if isinstance(name, ast.Name)
    }
    outside = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and id(node) not in inside
    }
    for statement in function.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]) if name not in outside:
                guards.add(id(statement))
    return guards


# --- statements that can be skipped ---------------------------------------------------------------


def _can_be_skipped(node: ast.AST, parent: ast.AST, function: Any) -> bool:
    """True if the statement has an effect and later names keep a value without it."""
    match node:
        case ast.Expr() | ast.AugAssign() | ast.Delete() | ast.Continue() | ast.Break():
            return True
        case ast.Return():
            return parent is not function
        case ast.Assign(targets=[ast.Name(id=name)]):
            return _is_already_set(name, node, function)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return True
    return False


def _is_already_set(name: str, node: ast.Assign, function: Any) -> bool:
    """True if the name is an argument or set in an earlier line of the function."""
    for inner in ast.walk(function):
        match inner:
            case ast.arg(arg=other) if other == name:
                return True
            case ast.Name(id=other, ctx=ast.Store()) if (
                other == name and inner.lineno < node.lineno
            ):
                return True
    return False
