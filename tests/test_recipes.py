"""The recipes of CONTRIBUTING, followed: a sample change of each kind, in few files, ends green."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PATCHES = ROOT / "tests" / "recipes"
MOST_FILES = {"a-rule": 3, "an-admission-variant": 6, "a-key-of-the-budget": 8}


def commands(section: str) -> list[str]:
    """The commands that a recipe ends with, from its section of CONTRIBUTING."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    _, _, rest = text.partition(f"## {section}\n")
    return re.findall(r"^    (\./bootstrap .*)$", rest.partition("\n## ")[0], flags=re.MULTILINE)


@pytest.mark.parametrize("name", MOST_FILES)
def test_a_sample_change_touches_few_files(name: str) -> None:
    patch = (PATCHES / f"{name}.patch").read_text(encoding="utf-8")

    files = set(re.findall(r"^\+\+\+ b/(.+)$", patch, flags=re.MULTILINE))

    assert 1 < len(files) <= MOST_FILES[name]


@pytest.mark.thorough
@pytest.mark.parametrize("name", MOST_FILES)
def test_a_sample_change_is_green_after_the_commands_of_the_page(name: str, tmp_path: Path) -> None:
    subprocess.run(["git", "clone", "--quiet", ROOT, tmp_path / "checkout"], check=True)
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "apply", PATCHES / f"{name}.patch"], cwd=checkout, check=True)
    after = commands("After a change")
    assert len(after) >= 3

    for command in after:
        done = subprocess.run(command.split(), cwd=checkout, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}{done.stderr[-2000:]}"
    shutil.rmtree(checkout)
