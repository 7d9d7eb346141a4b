"""Driver files run without the lockstep package."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from checks.harness.driver.process import DRIVER_FILES
from checks.releases.recipes import RECIPES, TEMPLATES

SHARED = {"lockstep_driver", "vllm_driver", "vllm_sessions", "nano_vllm"}
RELEASES = {"torch", "vllm", "sendnn_inference"}
FILES = sorted(DRIVER_FILES.glob("*.py"))


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." if node.level else str(node.module).split(".")[0])
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_driver_imports_the_standard_library_its_release_and_shared_files(path: Path) -> None:
    is_of_ours = path.stem in ("lockstep_driver", "imported") or path.stem.startswith("template")
    releases = set() if is_of_ours else RELEASES

    assert imported(path) <= set(sys.stdlib_module_names) | releases | SHARED


def test_the_protocol_file_has_the_syntax_of_python_3_9() -> None:
    ast.parse((DRIVER_FILES / "lockstep_driver.py").read_text("utf-8"), feature_version=(3, 9))


def test_there_is_a_driver_for_each_recipe_and_the_template() -> None:
    shared = {f"{module}.py" for module in SHARED}

    assert {path.name for path in FILES} == {
        *("imported.py", *TEMPLATES.values()),
        *shared,
        *(recipe.file for recipe in RECIPES),
    }
    assert all(
        (DRIVER_FILES / recipe.constraints).exists() for recipe in RECIPES if recipe.constraints
    )
    assert {recipe.shares for recipe in RECIPES if recipe.shares} <= {
        recipe.name for recipe in RECIPES
    }


def test_the_template_is_a_complete_example_of_under_120_lines() -> None:
    text = (DRIVER_FILES / "template.py").read_text(encoding="utf-8")

    assert len(text.splitlines()) < 120


def answers(path: Path, *messages: object) -> list[dict[str, object]]:
    """The answers of a driver without installed packages and without this checkout on its path."""
    done = subprocess.run(
        [sys.executable, "-E", "-s", "-S", str(path)],
        input="".join(f"{json.dumps(message)}\n" for message in messages),
        capture_output=True,
        text=True,
        cwd=path.parent,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_template_runs_without_anything_installed() -> None:
    start = {"do": "start", "config": {"max_num_seqs": 1}, "requests": []}

    hello, started = answers(DRIVER_FILES / "template.py", start, {"do": "stop"})

    assert list(hello)[:3] == ["format", "version", "name"]
    assert (hello["format"], hello["version"], hello["name"]) == ("lockstep-driver", 1, "template")
    assert started == {"started": True}


LOUD = """
import sys
sys.path.insert(0, {shared!r})
from lockstep_driver import Driver, serve

class Loud(Driver):
    hello = {{"name": "loud"}}
    def __init__(self):
        print("loading")
    def start(self, config):
        self.left = config["steps"]
    def step(self, action):
        print("step")
        self.left -= 1
        return {{"left": 1 // self.left, "tensors": self.tensors}}

serve(Loud)
"""


def test_a_driver_with_a_step_of_its_own_prints_raises_and_begins_again(tmp_path: Path) -> None:
    """Printed text is no answer; an exception is an answer, with the steps before it."""
    path = tmp_path / "loud.py"
    path.write_text(LOUD.format(shared=str(DRIVER_FILES)), encoding="utf-8")
    start = {"do": "start", "config": {"steps": 2}, "requests": [], "tensors": True}
    play = {"do": "play", "steps": [{}, {}, {}]}

    hello, early, odd, *started, played, refused = answers(
        path, play, {"do": "dance"}, start, play, {"do": "start", "config": {}, "requests": []}
    )

    assert hello == {"format": "lockstep-driver", "version": 1, "name": "loud"}
    assert early["steps"] == []
    assert odd["error"] == {
        "type": "ValueError",
        "message": "'dance' is not due",
        "at": "",
        "of": "",
    }
    assert started == [{"started": True}]
    assert played["steps"] == [{"left": 1, "tensors": True}]
    assert played["error"] == {
        "type": "ZeroDivisionError",
        "message": "integer division or modulo by zero",
        "at": "loud.py:15 step",
        "of": "",
    }
    assert refused["error"] == {
        "type": "KeyError",
        "message": "'steps'",
        "at": "loud.py:11 start",
        "of": "",
    }
