"""Driver files stand for themselves: they run where nothing of ours is installed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from checks.releases.recipes import DRIVER_FILES, RECIPES

FILES = sorted(path for path in DRIVER_FILES.glob("*.py") if path.name != "__init__.py")
OURS = {"spec", "reference", "engine", "checks", "tests"}
RELEASES = {"torch", "vllm", "sendnn_inference"}


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {one.name.split(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." if node.level else str(node.module).split(".")[0])
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_driver_imports_nothing_but_the_standard_library_and_its_release(path: Path) -> None:
    assert imported(path) <= set(sys.stdlib_module_names) | RELEASES


def test_there_is_a_driver_for_each_recipe_and_the_template() -> None:
    assert {path.name for path in FILES} == {"template.py", *(one.file for one in RECIPES)}
    assert all((DRIVER_FILES / one.constraints).exists() for one in RECIPES if one.constraints)
    assert {one.shares for one in RECIPES if one.shares} <= {one.name for one in RECIPES}


def test_the_template_is_a_complete_example_of_under_100_lines() -> None:
    text = (DRIVER_FILES / "template.py").read_text(encoding="utf-8")

    assert len(text.splitlines()) < 100


def test_the_template_runs_without_anything_installed(tmp_path: Path) -> None:
    """Isolated: neither the environment's packages nor the checkout are on the path."""
    lines = '{"do": "start", "config": {"max_num_seqs": 1}, "requests": []}\n{"do": "stop"}\n'

    done = subprocess.run(
        [sys.executable, "-I", "-S", str(DRIVER_FILES / "template.py")],
        input=lines,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )

    hello, started = done.stdout.splitlines()
    assert hello.startswith('{"format": "lockstep-driver", "version": 1, "name": "template"')
    assert started == '{"started": true}'
