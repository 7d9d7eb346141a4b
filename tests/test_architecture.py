"""Allowed imports between parts, and the places that may name a policy, read from the code."""

import ast
import json
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import networkx as nx
import pytest
from attrs import frozen

import hatch_build
from checks.registry import POLICIES, claims_of

ROOT = Path(__file__).parent.parent
ROOMS = {  # claims import nothing of ours, machine and engine only claims, evidence all
    "spec": {"spec"},
    "reference": {"spec", "reference"},
    "engine": {"spec", "engine"},
    "checks": {"spec", "reference", "engine", "checks"},
    "lockstep": {"spec", "reference", "engine", "checks", "lockstep"},
}
OURS = {*ROOMS, "tests", "benchmarks"}

# Parts of `checks`, the lower ones first, and the parts that each may import.
PARTS: dict[str, set[str]] = {
    "ending": set(),
    "cores": {"ending"},
    "cluster": {"cores"},
    "words": set(),
    "witnesses": set(),
    "drivers": set(),
    "remembered": set(),
    "registry": set(),
    "export": {"registry"},
    "explore": {"ending", "cores", "remembered", "registry", "export"},
    "harness": {
        *("ending", "cores", "words", "witnesses", "remembered", "registry", "export"),
        "explore",
    },
    "policies": {"remembered", "registry", "export", "explore", "harness"},
    "proofs": {"cores", "registry", "export", "explore", "harness"},
    "releases": {"words", "registry", "export", "harness"},
    "evidence": {"words", "export", "explore", "harness", "proofs"},
    "mutants": {
        *("ending", "cores", "registry", "export", "explore", "harness", "proofs", "evidence"),
    },
    "reached": {"registry", "harness", "evidence"},
    "chapters": {"registry", "export", "explore", "harness", "releases", "evidence"},
    "glossary": set(),
    "vocabulary": {"registry", "evidence", "chapters", "glossary"},
    "book": {
        *("cores", "words", "registry", "export", "explore", "harness", "proofs", "releases"),
        *("evidence", "chapters", "glossary"),
    },
    "cli": {
        *("ending", "cores", "cluster", "words", "registry", "export", "explore", "harness"),
        *("proofs", "releases", "evidence", "mutants", "chapters", "glossary"),
        *("vocabulary", "book"),
    },
}

PACKAGES = {name.replace("-", "_"): name for name in POLICIES}
CONFIGURATIONS = {claims_of(policy).config.__name__ for policy in POLICIES}
# Where policies, or drivers of the same names, are listed.
LISTS = {
    *("checks/registry.py", "checks/releases/recipes.py", "checks/book/outward.py"),
    "lockstep/vllm.py",
}


# --- imports --------------------------------------------------------------------------------------


tree_of = cache(ast.parse)


@frozen
class Import:
    """A module of ours that is imported, with the imported name behind it."""

    line: int
    module: str


@cache
def imported_names(source: str, package: str = "") -> tuple[Import, ...]:
    """Everything of ours that a module of this package imports, in functions and for types too."""
    found = []
    for node in ast.walk(tree_of(source)):
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.Call):
            continue
        match node:
            case ast.Import(names=names):
                modules = [name.name for name in names]
            case ast.ImportFrom(level=level, module=module, names=names):
                parent = package.split(".")[: len(package.split(".")) - level + 1] if level else []
                origin = ".".join([*parent, *filter(None, [module])])
                modules = [f"{origin}.{name.name}" for name in names]
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__")
                | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(text)), *_],
            ):
                modules = [text]
            case _:
                continue
        found += [Import(node.lineno, name) for name in modules if name.split(".")[0] in OURS]
    return tuple(found)


def part_of(module: str) -> str:
    """The part of `checks` that a module belongs to, or its room."""
    room, *names = module.split(".")
    return names[0] if room == "checks" and names else room


def forbidden_imports(source: str, name: str) -> list[str]:
    """The modules that the module of this dotted name must not import."""
    room, part = name.split(".")[0], part_of(name)
    found = []
    for imported in imported_names(source, name.rpartition(".")[0]):
        top, other = imported.module.split(".")[0], part_of(imported.module)
        if top not in ROOMS[room]:
            found.append(f"line {imported.line}: {room} imports {top}")
        elif "checks" == room == top and other not in {part, *PARTS[part]}:
            found.append(f"line {imported.line}: {part} imports {other}")
    return found


def sources() -> dict[str, str]:
    """Every module by its dotted name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): (
            path.read_text(encoding="utf-8")
        )
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
    }


SOURCES = sources()


def test_every_module_imports_only_what_it_may() -> None:
    found = {name: forbidden_imports(source, name) for name, source in SOURCES.items()}

    assert {name: what for name, what in found.items() if what} == {}


def test_every_part_and_every_shipped_room_is_checked() -> None:
    assert {hatch_build.PACKAGE, *hatch_build.ROOMS} == set(ROOMS)
    parts = {part_of(name) for name in SOURCES if name.startswith("checks.")}
    assert parts == set(PARTS)


def test_every_direction_that_is_allowed_is_taken() -> None:
    taken = {
        (part_of(name), part_of(imported.module))
        for name, source in SOURCES.items()
        if name.startswith("checks.")
        for imported in imported_names(source, name.rpartition(".")[0])
    }

    allowed = {(part, other) for part, others in PARTS.items() for other in others}
    assert allowed - taken == set()


def test_parts_stand_in_an_order() -> None:
    order = list(PARTS)

    assert all(order.index(other) <= order.index(part) for part in order for other in PARTS[part])


@pytest.mark.parametrize(
    ("name", "source", "found"),
    [
        ("spec.a", "import reference.core.guards", "spec imports reference"),
        ("spec.a", "import json, checks as c", "spec imports checks"),
        ("engine.a", "def f():\n    from reference import core", "engine imports reference"),
        ("engine.a", "if TYPE_CHECKING:\n    import checks.cli", "engine imports checks"),
        ("reference.a", "from engine.core.metrics import Spread", "reference imports engine"),
        ("spec.a", "importlib.import_module('engine.core')", "spec imports engine"),
        ("spec.a", "__import__('engine')", "spec imports engine"),
        ("checks.cores", "from tests.checks import command", "checks imports tests"),
        ("checks.harness.a", "from checks.cli import common", "harness imports cli"),
        ("checks.harness.a", "from checks import releases", "harness imports releases"),
        ("checks.harness.a", "def f():\n    import checks.proofs", "harness imports proofs"),
        ("checks.harness.a", "from ..policies.spyre import codec", "harness imports policies"),
        (
            "checks.explore.a",
            "from checks.policies.spyre.model import canonical_state",
            "explore imports policies",
        ),
        ("checks.registry", "from checks.harness.policy import A", "registry imports harness"),
        (
            "checks.registry",
            "if TYPE_CHECKING:\n    import checks.export",
            "registry imports export",
        ),
        ("checks.cli.a", "from checks.policies.spyre import claims", "cli imports policies"),
    ],
)
def test_forbidden_import_is_found(name: str, source: str, found: str) -> None:
    line = source.count("\n") + 1

    assert forbidden_imports(source, name) == [f"line {line}: {found}"]


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("spec.a", "from spec.spyre.padding import volume\nfrom . import rules\nimport specific"),
        ("spec.a", "text = 'import reference'  # import checks"),
        ("reference.a", "from spec.spyre.records import Step\nfrom reference import core"),
        ("checks.harness.a", "from checks.registry import claims_of\nimport engine.core.clock"),
        ("checks.cli.a", "from checks.export.policy import Presentation\nfrom .common import PATH"),
    ],
)
def test_allowed_import_is_not_found(name: str, source: str) -> None:
    assert forbidden_imports(source, name) == []


# --- circles --------------------------------------------------------------------------------------


def circles(modules: Mapping[str, str]) -> list[set[str]]:
    """Modules that import each other, in functions and for types too."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    for name, source in modules.items():
        for imported in imported_names(source, name.rpartition(".")[0]):
            named = (imported.module, imported.module.rpartition(".")[0])
            found = next((module for module in named if module in modules), None)
            if found not in (None, name):
                graph.add_edge(name, found)
    return [circle for circle in nx.strongly_connected_components(graph) if len(circle) > 1]


def test_no_modules_import_each_other() -> None:
    assert circles(SOURCES) == []


def test_circle_is_noticed_also_inside_a_function() -> None:
    inside = "def f():\n    from checks.a import g\n"

    assert circles({"checks.a": "from checks import b\n", "checks.b": inside}) == [
        {"checks.a", "checks.b"}
    ]


# --- the specification ----------------------------------------------------------------------------

REMEMBERING = {"weakref", "cache", "lru_cache", "cached_property", "once"}
LAZY = {"__getattr__", "__getattribute__", "__missing__", "__setattr__"}
CONTAINERS = {"dict", "list", "set", "Counter", "defaultdict", "deque", "OrderedDict"}


def machinery(source: str) -> list[str]:
    """What a module of `spec` has beyond what it says.

    A foreign import, what remembers answers or delays them, what a judge of long runs looks at, and
    values that outlive a call: an empty container of a module, a field that a frozen class fills.
    """
    tree = tree_of(source)
    found = [
        f"line {node.lineno}: keeps {ast.unparse(node)}"
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign) and _is_empty(node.value)
    ]
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found += _foreign(node.lineno, *(name.name for name in names))
            case ast.ImportFrom(module=str(module), names=names):
                found += _foreign(node.lineno, module)
                found += _named(node.lineno, *(name.name for name in names))
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.FunctionDef(name=name):
                found += _named(node.lineno, name)
            case ast.Global():
                found.append(f"line {node.lineno}: global")
            case ast.Call(keywords=keywords) if any(word.arg == "look" for word in keywords):
                found.append(f"line {node.lineno}: look=")
            case ast.ClassDef(decorator_list=made_by, body=body):
                if any("frozen" in ast.unparse(decorator) for decorator in made_by):
                    found += [
                        f"line {field.lineno}: keeps {ast.unparse(field.target)}"
                        for field in body
                        if isinstance(field, ast.AnnAssign) and "init=False" in ast.unparse(field)
                    ]
    return found


def _is_empty(value: ast.expr | None) -> bool:
    match value:
        case ast.Dict(keys=[]) | ast.List(elts=[]):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)), args=[]):
            return name in CONTAINERS
    return False


def _foreign(line: int, *modules: str) -> list[str]:
    tops = {module.split(".")[0] for module in modules} - {"spec", "attrs"}
    found = [f"line {line}: imports {top}" for top in tops - sys.stdlib_module_names]
    return found + _named(line, *tops)


def _named(line: int, *names: str) -> list[str]:
    return [f"line {line}: {name}" for name in names if name in REMEMBERING | LAZY]


def test_the_specification_says_and_does_nothing_else() -> None:
    found = {
        name: machinery(source) for name, source in SOURCES.items() if name.startswith("spec.")
    }

    assert {name: what for name, what in found.items() if what} == {}
    assert len(found) > 50


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import numpy as np", "imports numpy"),
        ("def f():\n    import z3", "imports z3"),
        ("from checks.harness import incremental", "imports checks"),
        ("import weakref", "weakref"),
        ("from functools import lru_cache", "lru_cache"),
        ("import functools\n@functools.cache\ndef f(): ...", "cache"),
        ("from functools import cached_property", "cached_property"),
        ("from spec.core.judging import once", "once"),
        ("_SEEN: dict[str, int] = {}", "keeps _SEEN: dict[str, int] = {}"),
        ("_SEEN = defaultdict[str, int]()", "keeps _SEEN = defaultdict[str, int]()"),
        ("def f():\n    global SEEN\n    SEEN = 1", "global"),
        ("@frozen\nclass Keys:\n    _known: dict[str, int] = field(init=False)", "keeps _known"),
        ("class Part(dict):\n    def __missing__(self, key): ...", "__missing__"),
        ("@always('BLK-1', HERE, look=moved)\ndef f(): ...", "look="),
    ],
)
def test_machinery_in_the_specification_is_found(source: str, found: str) -> None:
    assert {what.partition(": ")[2] for what in machinery(source)} == {found}


# --- policies -------------------------------------------------------------------------------------


def named_policies(source: str, path: str) -> list[str]:
    """The places where a module names a policy, imports its package or tests for its class."""
    own = next((part for part in path.split("/") if part in PACKAGES), None)
    if not _MENTIONED.search(source):
        return []
    tree = tree_of(source)
    found = [
        f"line {imported.line}: imports {package}"
        for imported in imported_names(source)
        for package in PACKAGES
        if package in imported.module.split(".") and package != own
    ]
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kind]):
                found += _asked_names(kind)
            case ast.Compare(left=left, comparators=[*others]):
                found += [what for operand in (left, *others) for what in _asked_names(operand)]
            case ast.MatchClass(cls=kind):
                found += _asked_names(kind)
    if own is None:
        texts = _texts(tree)
        found += [
            f"line {line}: names {text!r}" for line, text in texts if _POLICY_NAME.search(text)
        ]
    return found


_MENTIONED = re.compile("|".join([*PACKAGES, *PACKAGES.values(), *CONFIGURATIONS]))
_POLICY_NAME = re.compile(rf"\b({'|'.join([*PACKAGES, *PACKAGES.values()])})\b")


def _asked_names(kind: ast.expr) -> list[str]:
    names = (node.id for node in ast.walk(kind) if isinstance(node, ast.Name))
    return [f"line {kind.lineno}: asks for {name}" for name in names if name in CONFIGURATIONS]


def _texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every text but docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, documented) and node.body)
    docstrings = {id(body[0].value) for body in bodies if isinstance(body[0], ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield node.lineno, text


def test_a_policy_is_named_only_in_its_own_packages_and_where_they_are_listed() -> None:
    found = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if name not in LISTS and not name.startswith("checks/drivers/"):
                found[name] = named_policies(path.read_text(encoding="utf-8"), name)

    assert {name: what for name, what in found.items() if what} == {}
    assert len(found) > 200


@pytest.mark.parametrize(
    ("path", "source", "found"),
    [
        ("checks/cli/a.py", "if config.policy == 'spyre': pass", "names 'spyre'"),
        ("checks/cli/a.py", "table = {'nano-vllm': 1}", "names 'nano-vllm'"),
        ("spec/core/a.py", "import_module('spec.spyre')", "imports spyre"),
        ("engine/core/a.py", "from spec.spyre.records import Step", "imports spyre"),
        ("spec/nano_vllm/a.py", "from spec.vllm_v1 import records", "imports vllm_v1"),
        ("checks/policies/spyre/a.py", "import checks.policies.nano_vllm.paging as p", None),
        ("checks/a.py", "isinstance(config, SpyreConfig)", "asks for SpyreConfig"),
        ("checks/a.py", "isinstance(config, (int, records.X, VllmV1Config))", None),
        ("spec/spyre/a.py", "type(config) is SpyreConfig", "asks for SpyreConfig"),
        ("checks/a.py", "match config:\n    case NanoVllmConfig(): pass", None),
    ],
)
def test_named_policy_is_found(path: str, source: str, found: str | None) -> None:
    (policy, *_) = named_policies(source, path)

    assert found is None or policy.endswith(found)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("checks/a.py", '"""Spyre, nano-vllm and vllm-v1 are served."""'),
        ("checks/a.py", "policy = policy_of(config)\ntext = 'respyred'"),
        ("checks/policies/spyre/a.py", "from spec.spyre.config import SpyreConfig\nname = 'spyre'"),
        ("checks/proofs/vllm_v1/a.py", "from reference.vllm_v1.machine import VllmV1Machine"),
    ],
)
def test_what_names_no_other_policy_is_not_found(path: str, source: str) -> None:
    assert named_policies(source, path) == []


# --- shapes ---------------------------------------------------------------------------------------

MOST_FIELDS, MOST_PARAMETERS = 12, 8
LARGER = {
    "engine.vllm_v1.verifying: VerifyingRows": "arrays of rows, and what follows from them",
    "checks.proofs.registry: obligation": "the fields of a claim, each by its name",
}


def large_shapes(source: str, name: str) -> list[str]:
    """Classes with too many fields that are no records, functions with too many parameters.

    A record holds nothing but data that others read: no field is private, none is a function.
    """
    found = []
    for node in ast.walk(tree_of(source)):
        match node:
            case ast.ClassDef():
                own = [field for field in node.body if isinstance(field, ast.AnnAssign)]
                is_record = not any(
                    ast.unparse(field.target).startswith("_") or "Callable" in ast.unparse(field)
                    for field in own
                )
                is_large = len(own) > MOST_FIELDS and not is_record
            case ast.FunctionDef(args=ast.arguments(posonlyargs=[], args=args, kwonlyargs=others)):
                named = [
                    argument for argument in (*args, *others) if argument.arg not in ("self", "cls")
                ]
                rest = [
                    argument
                    for argument in (node.args.vararg, node.args.kwarg)
                    if argument is not None
                ]
                is_large = len(named) + len(rest) > MOST_PARAMETERS
            case _:
                continue
        if is_large:
            found.append(f"{name}: {node.name}")
    return found


def test_no_class_and_no_function_is_large() -> None:
    found = [shape for name, source in SOURCES.items() for shape in large_shapes(source, name)]

    assert {*found} == {*LARGER}


@pytest.mark.parametrize(
    ("source", "is_large"),
    [
        ("def f(a, b, c, d, e, f, g, h): pass", False),
        ("def f(a, b, c, d, e, f, *, g, h, i): pass", True),
        ("class A:\n def f(self, a, b, c, d, e, f, g, **h): pass", False),
        ("def f(a, b, c, d, e, f, g, *h, **i): pass", True),
        ("class A:\n" + "".join(f" a{number}: int\n" for number in range(13)), False),
        ("class A:\n" + "".join(f" a{number}: int\n" for number in range(12)) + " _b: int", True),
        ("class A:\n" + "".join(f" a{number}: Callable\n" for number in range(13)), True),
        ("class A:\n" + "".join(f" a{number}: Callable\n" for number in range(12)), False),
    ],
)
def test_large_shape_is_found(source: str, is_large: bool) -> None:
    assert bool(large_shapes(source, "a")) is is_large


# --- what a command loads -------------------------------------------------------------------------

# Prints which files of ours a command has loaded, and in which of them a function ran.
TRACED = """
import json, sys, threading
from pathlib import Path

ran = set()
def note(frame, event, _argument):
    if event == "call" and frame.f_code.co_flags & 1:  # a function, no body of a class or module
        ran.add(frame.f_code.co_filename)

root = Path.cwd()
def ours(files):
    paths = [Path(file) for file in files if file]
    return sorted(str(path.relative_to(root)) for path in paths if path.is_relative_to(root))

from lockstep.__main__ import main
sys.argv = ["lockstep", *sys.argv[1:]]
sys.setprofile(note)
threading.setprofile(note)
try:
    main()
except SystemExit as end:
    sys.setprofile(None)
    loaded = [getattr(module, "__file__", None) for module in [*sys.modules.values()]]
    print(json.dumps({"code": end.code, "loaded": ours(loaded), "ran": ours(ran)}), file=sys.stderr)
"""


def test_exploring_one_instance_loads_its_policy_alone_and_runs_few_files() -> None:
    command = [sys.executable, "-c", TRACED, "explore", "exact"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stderr.splitlines()[-1])

    assert found["code"] == 0
    policies = {part for path in found["loaded"] for part in path.split("/") if part in PACKAGES}
    assert policies == {"spyre"}
    own = [path for path in found["ran"] if path.startswith(("checks/", "lockstep/"))]
    assert 10 < len(own) <= 40, own
    assert not [path for path in found["loaded"] if path.startswith(("checks/proofs", "engine/v"))]


def test_help_takes_a_moment() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "lockstep", "--help"]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)

    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    assert used <= 0.3  # seconds of the processor: the machine may be busy


# --- output files ---------------------------------------------------------------------------------

# What opens a file to write: `new_file` alone, so that each is there whole or not at all.
WRITES = re.compile(r"\.write_(?:text|bytes)\(|open\([^)\n]*[\"'][wax]b?\+?[\"']")
WRITERS = {
    "checks.export.files",
    "checks.releases.environments",  # logs of an installation, and notes of how far it is
    "checks.cli.contract",  # standard streams that are missing
    "checks.explore.compiled.jit",  # generated source in the user's cache, no result of a command
    "checks.mutants.keeping",  # lines in the user's cache, each as it comes
}


def test_every_output_file_of_a_command_is_written_by_one_helper() -> None:
    found = {
        name
        for name, source in SOURCES.items()
        if name.startswith("checks.") and ".drivers." not in name and WRITES.search(source)
    }
    assert found <= WRITERS
