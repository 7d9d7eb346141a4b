"""The wheel installs one package, which never imports a user's package with a room's name."""

import ast
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from checks.cli.main import lockstep as command
from hatch_build import PACKAGE, ROOMS, moved

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# Of each command a line that can run in an empty directory, and its exit code; of others the help.
LINES: dict[str, tuple[str, int]] = {
    "bisect": ("bisect none.jsonl --versions 0.0.2..0.0.2", 2),
    "calibrate": ("calibrate none.jsonl", 2),
    "check": ("check none.jsonl", 2),
    "conform": ("conform template --episodes 3", 0),
    "driver": ("driver check template", 0),
    "examples": ("examples", 0),
    "explain": ("explain tkv", 0),
    "explore": ("explore documented", 1),
    "fuzz": ("fuzz --episodes 3", 0),
    "mutants": ("mutants spec/spyre/padding.py:volume", 0),
    "prove": ("prove PRV-VOL", 1),
    "replay": ("replay counterexamples/documented-spy-vol-1.jsonl", 1),
    "rules": ("rules SPY-VOL", 0),
    "run": ("run examples/first.jsonl --config examples/first.toml", 0),
    "simulate": ("simulate examples/first.jsonl --config examples/first.toml", 0),
    "survey": ("survey nano-vllm --versions 0.0.2..0.0.2 --episodes 1", 2),
}


OPENED = """
import json, sys

sys.path.insert(0, {page!r})
from lockstep.checks.harness.views.live import Live, policies

request = {{"id": "0", "prompt_len": 4, "max_tokens": 2}}
for name in json.loads(policies()):
    situation = {{"policy": name, "config": {{"num_blocks": 8}}, "requests": [request]}}
    print(Live().open(json.dumps(situation)))
"""  # what a page does with each policy


def built(kind: str, source: Path, into: Path) -> Path:
    """The wheel or the source distribution of a checkout."""
    argv = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(into)]
    subprocess.run(argv, cwd=source, check=True, capture_output=True)
    (made,) = into.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def unpacked(wheel: Path, tmp_path: Path) -> Path:
    """A directory of packages with the wheel's, and with hostile ones of the rooms' names."""
    packages = tmp_path / "packages"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    hostile(packages)
    return packages


def hostile(packages: Path) -> None:
    """Put packages there that have the rooms' names and must never be imported."""
    for name in (*ROOMS, "tests"):
        (packages / name).mkdir(exist_ok=True)
        text = f"raise ImportError('{name} is a package of the user')\n"
        (packages / name / "__init__.py").write_text(text)


# --- what is in it --------------------------------------------------------------------------------


def test_the_wheel_has_one_package_with_all_that_the_checkout_has(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}

    expected = {
        str(Path(PACKAGE) / path.relative_to(ROOT / PACKAGE if folder == PACKAGE else ROOT))
        for folder in (*ROOMS, "examples", PACKAGE)
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and {"__pycache__", "node_modules"}.isdisjoint(path.parts)
    }
    assert names == expected
    assert {"lockstep/py.typed", "lockstep/spec/chapters/spyre.md"} <= names


def test_no_module_of_the_wheel_names_a_room_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        modules = [name for name in archive.namelist() if name.endswith(".py")]
        named = {name: list(rooms_named(archive.read(name), set(modules))) for name in modules}

    assert len(named) > 300
    assert {name: what for name, what in named.items() if what} == {}


def test_what_live_pages_run_of_an_installed_wheel_imports_by_itself(
    unpacked: Path, tmp_path: Path
) -> None:
    """With the standard library and what is in the page, and nothing else."""
    page = tmp_path / "page"
    made = "from lockstep.checks.export.pages.runtime import sources as s; import sys"
    ours = {**os.environ, "PYTHONPATH": str(unpacked)}
    argv = [sys.executable, "-c", f"{made}; sys.stdout.buffer.write(s())"]
    zipped = subprocess.run(argv, env=ours, cwd=tmp_path, check=True, capture_output=True).stdout
    with zipfile.ZipFile(io.BytesIO(zipped)) as archive:
        archive.extractall(page)

    run = [sys.executable, "-I", "-S", "-c", OPENED.format(page=str(page))]
    ran = subprocess.run(run, capture_output=True, text=True)

    documents = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(documents) == 4, ran.stderr
    assert all("document" in document for document in documents)


def rooms_named(source: bytes, modules: set[str]) -> Iterator[str]:
    """Imports of a room without the package, and texts that are the name of a module in one."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found = [name.name for name in names]
            case ast.ImportFrom(level=0, module=str(name)):
                found = [name]
            case ast.Constant(value=str(text)) if (
                f"{PACKAGE}/{text.replace('.', '/')}.py" in modules
                or f"{PACKAGE}/{text.replace('.', '/')}/__init__.py" in modules
            ) and "." in text:
                found = [text]
            case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]) if "." in text:
                found = [text]
            case _:
                continue
        yield from (name for name in found if name.split(".")[0] in ROOMS)


def test_a_command_runs_from_the_wheel_beside_packages_of_the_rooms_names(
    unpacked: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    hostile(here)  # `python -m` looks there first

    argv = [sys.executable, "-m", "lockstep", "rules", "SPY-VOL", "--json", "-"]
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    done = subprocess.run(argv, cwd=here, env=environment, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert next(rule["id"] for rule in json.loads(done.stdout)["rules"]) == "SPY-VOL-1"


# --- how it is made -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from spec.core import rule\n", "from lockstep.spec.core import rule\n"),
        ("import spec\n", "from lockstep import spec\n"),
        ("import checks.cli.main as m\n", "import lockstep.checks.cli.main as m\n"),
        ("import json, engine.core as e\n", "import json, lockstep.engine.core as e\n"),
        ("def f():\n    from  spec import a\n", "def f():\n    from lockstep.spec import a\n"),
        ("é = 1; from spec import a\n", "é = 1; from lockstep.spec import a\n"),
        (
            "from checks.a import (\n    b,  # from spec\n)\n",
            "from lockstep.checks.a import (\n    b,  # from spec\n)\n",
        ),
        *[
            (same, same)
            for same in (
                "from specific import a\n",
                "from . import spec\n",
                "import numpy as np, json\n",
                "text = '''\nfrom spec import a\n'''\n",
                "import_module('.spec', __package__)\n",
            )
        ],
    ],
)
def test_imports_of_rooms_are_moved_and_nothing_else(source: str, expected: str) -> None:
    assert moved(source.encode(), "a.py").decode() == expected


@pytest.mark.parametrize(
    "source",
    [
        "import spec.core",
        "import json, spec",
        "import_module('spec.core')",
        "importlib.import_module(f'checks.cli.{name}')",
        "find_spec('engine')",
    ],
)
def test_what_cannot_be_moved_ends_the_build(source: str) -> None:
    with pytest.raises(ValueError, match=r"a\.py:1: .* cannot be moved; write from"):
        moved(source.encode(), "a.py")


# --- installed ------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_the_source_distribution_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    archive = built("sdist", ROOT, tmp_path / "sdist")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()

    again = built("wheel", source, tmp_path / "again")

    assert contents(again) == contents(wheel)


def contents(wheel: Path) -> dict[str, str]:
    """A digest of each file."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def interpreter(version: str) -> str | None:
    """A Python of this version that starts: on the path, or pyenv's."""
    own = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    for path in (*map(str, own), shutil.which(f"python{version}")):
        if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            return path
    return None


@pytest.mark.thorough
@pytest.mark.parametrize("version", PYTHONS)
def test_every_command_runs_where_it_is_installed(
    version: str, wheel: Path, tmp_path: Path
) -> None:
    """In an environment whose user has packages with the rooms' names."""
    python = interpreter(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here")
    venv, here = tmp_path / "venv", tmp_path / "here"
    subprocess.run([python, "-m", "venv", str(venv)], check=True)
    install = [str(venv / "bin" / "pip"), "install", "--quiet", f"{wheel}[pytest]"]
    subprocess.run(install, check=True)
    (packages,) = (venv / "lib").glob("python*/site-packages")
    hostile(packages)
    here.mkdir()
    environment = os.environ | {"LOCKSTEP_DRIVERS": str(tmp_path / "drivers"), "PYTHONPATH": ""}

    def ran(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, cwd=here, env=environment, capture_output=True, text=True)

    python = str(venv / "bin" / "python")
    assert ran(python, "-m", "lockstep", "--version").stdout.startswith("lockstep, version ")
    ended = {}
    for name in ("examples", "explore", *command.commands):  # whose files others read
        line, code = LINES.get(name, (f"{name} --help", 0))
        done = ran(str(venv / "bin" / "lockstep"), *line.split())
        if done.returncode != code:
            ended[line] = f"{done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}"
    assert ended == {}
