"""Who may know whom: claims know nobody, machine and engine only claims, evidence everybody."""

import ast
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "spec": {"spec"},
    "reference": {"spec", "reference"},
    "engine": {"spec", "engine"},
    "checks": {"spec", "reference", "engine", "checks"},
}
OURS = {*MAY_IMPORT, "tests"}


def imported_rooms(source: str, room: str) -> Iterator[tuple[int, str]]:
    """Line and room of everything of ours that a module of `room` imports, wherever it does so."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                modules = [name.name for name in names]
            case ast.ImportFrom(level=0, module=str(module)):
                modules = [module]
            case ast.ImportFrom():
                modules = [room]  # relative: within the room
            case ast.Call(func=function, args=[ast.Constant(value=str(module)), *_]) if ast.unparse(
                function
            ).endswith(("import_module", "__import__")):
                modules = [module]
            case _:
                continue
        for name in modules:
            top = name.split(".")[0]
            if top in OURS:
                yield node.lineno, top


def forbidden_imports(source: str, room: str) -> list[str]:
    return [
        f"line {line}: {room} imports {other}"
        for line, other in imported_rooms(source, room)
        if other not in MAY_IMPORT[room]
    ]


def modules_of(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_room_imports_only_what_it_may(room: str) -> None:
    found = {
        str(path.relative_to(ROOT)): forbidden
        for path in modules_of(room)
        if (forbidden := forbidden_imports(path.read_text(encoding="utf-8"), room))
    }

    assert found == {}


@pytest.mark.parametrize(
    ("room", "others"),
    [("spec", set()), ("reference", {"spec"}), ("engine", {"spec"}), ("checks", {"reference"})],
)
def test_imports_are_really_found(room: str, others: set[str]) -> None:
    seen = {
        other
        for path in modules_of(room)
        for _, other in imported_rooms(path.read_text(encoding="utf-8"), room)
    }

    assert {room} | others <= seen


@pytest.mark.parametrize(
    ("room", "source", "found"),
    [
        ("spec", "import reference.core.block_pool", ["line 1: spec imports reference"]),
        ("spec", "import json, checks as c", ["line 1: spec imports checks"]),
        ("engine", "\nfrom reference import guards", ["line 2: engine imports reference"]),
        (
            "reference",
            "from engine.core.metrics import Spread",
            ["line 1: reference imports engine"],
        ),
        ("reference", "def f():\n    import checks", ["line 2: reference imports checks"]),
        (
            "engine",
            "if TYPE_CHECKING:\n    from checks.harness.running import Judge",
            ["line 2: engine imports checks"],
        ),
        ("spec", "importlib.import_module('engine.core.metrics')", ["line 1: spec imports engine"]),
        ("spec", "__import__('engine')", ["line 1: spec imports engine"]),
        (
            "checks",
            "from tests.checks import command",
            ["line 1: checks imports tests"],
        ),
    ],
)
def test_forbidden_import_is_found(room: str, source: str, found: list[str]) -> None:
    assert forbidden_imports(source, room) == found


@pytest.mark.parametrize(
    ("room", "source"),
    [
        (
            "spec",
            "from spec.spyre.padding import volume\nfrom . import rules\nimport attrs, specific",
        ),
        ("reference", "from spec.spyre.records import Step\nfrom reference import guards"),
        ("engine", "from spec.spyre.records import Step\nimport engine.core.metrics"),
        ("checks", "import engine, reference, spec.spyre.rules, checks.harness.running"),
        ("spec", "text = 'import reference'  # import checks"),
    ],
)
def test_allowed_import_is_not_found(room: str, source: str) -> None:
    assert forbidden_imports(source, room) == []


def test_every_room_that_is_shipped_is_looked_at() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]

    assert set(wheel["packages"]) == set(MAY_IMPORT)


# --- no circles -----------------------------------------------------------------------------------


def imports_between(sources: Mapping[str, str]) -> "nx.DiGraph[str]":
    """Which module of `sources`, by dotted name, imports which other, wherever it does so."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for name, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported = [f"{node.module}.{one.name}" for one in node.names]
                named = [one if one in sources else node.module for one in imported]
                graph.add_edges_from((name, one) for one in named if one in sources)
    return graph


def circles(sources: Mapping[str, str]) -> list[set[str]]:
    graph = imports_between(sources)
    return [circle for circle in nx.strongly_connected_components(graph) if len(circle) > 1]


def test_no_modules_import_each_other() -> None:
    sources = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): (
            path.read_text(encoding="utf-8")
        )
        for room in MAY_IMPORT
        for path in modules_of(room)
    }

    assert circles(sources) == []


def test_circle_is_noticed_also_inside_a_function() -> None:
    inside = "def f():\n    from checks.a import g\n"

    assert circles({"checks.a": "from checks import b\n", "checks.b": inside}) == [
        {"checks.a", "checks.b"}
    ]
