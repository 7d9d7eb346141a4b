"""The commands of the CI recipes run unchanged in a project with one scheduler."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from checks.cli.examples import EXAMPLES
from tests.checks.command import lockstep
from tests.lockstep.broken import write
from tests.lockstep.containers import built, can_build, ran

CI = EXAMPLES / "ci"
ROOT = EXAMPLES.parent
INSTALL = 'pip install --find-links wheels "lockstep-schedulers[pytest]"'


def commands(recipe: str) -> list[str]:
    """The shell commands of a recipe, without the installation."""
    text = (CI / recipe).read_text(encoding="utf-8")
    found = re.findall(
        r"^ +- (?:run: )?((?:pip|pytest|lockstep) .*?)(?: #.*)?$", text, flags=re.MULTILINE
    )
    assert found[0] == INSTALL
    return found[1:]


def kept(recipe: str) -> list[str]:
    """The files and directories that a recipe keeps as artifacts, as patterns."""
    text = (CI / recipe).read_text(encoding="utf-8")
    quoted = re.findall(r'\bpaths?: \[?"(.*?)"', text)
    return [
        *(pattern.rstrip("/") for text in quoted for pattern in text.split("\\n")),
        *re.findall(r"junit: (\S+)}", text),
    ]


def run(line: str, project: Path) -> int:
    """The exit code of a command in the project, with this environment's commands on the path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-ec", line], cwd=project, env=os.environ | {"PATH": path}, capture_output=True
    )
    return done.returncode


@pytest.fixture
def project(tmp_path: Path) -> Path:
    test = 'def test_scheduler(lockstep):\n    lockstep.conform("driver.py")\n'
    (tmp_path / "test_scheduler.py").write_text(test)
    write(tmp_path)
    return tmp_path


@pytest.mark.thorough
@pytest.mark.parametrize("recipe", ["github.yml", "gitlab.yml"])
def test_commands_of_a_recipe_pass_for_a_right_scheduler(recipe: str, project: Path) -> None:
    assert [run(line, project) for line in commands(recipe)] == [0] * len(commands(recipe))
    assert (project / "junit.xml").exists()


@pytest.mark.parametrize(
    "recipe", [pytest.param("github.yml", marks=pytest.mark.thorough), "gitlab.yml"]
)
def test_commands_of_a_recipe_fail_for_a_wrong_one_and_leave_the_artifacts(
    recipe: str, project: Path
) -> None:
    write(project, "joins behind")

    codes = [run(line, project) for line in commands(recipe)]

    assert codes == [1] * len(codes)
    for pattern in kept(recipe):
        assert list(project.glob(pattern)), pattern
    assert list((project / "findings").glob("*.jsonl"))
    assert "joins" not in (project / "junit.xml").read_text()  # the report, not the source


def test_the_hook_of_pre_commit_is_a_command_that_passes() -> None:
    text = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    (entry,) = re.findall(r"^  entry: (.*)$", text, flags=re.MULTILINE)

    assert entry == "lockstep explore --expect recorded"
    assert lockstep(*entry.replace("explore", "explore dialogue").split()[1:]).code == 0


RECIPE = (CI / "Containerfile").read_text(encoding="utf-8")


@pytest.mark.thorough
@pytest.mark.skipif(not can_build(RECIPE), reason="no builder, or not the image to begin with")
def test_the_container_passes_a_right_scheduler_and_not_a_wrong_one(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    context = tmp_path_factory.mktemp("context")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d"]
    subprocess.run([*build, str(context / "wheels")], cwd=ROOT, check=True, capture_output=True)
    image = built(RECIPE, context)

    assert ran(image, project) == 0
    assert (project / "junit.xml").exists()

    write(project, "joins behind")
    assert ran(image, project) == 1
    assert list((project / "findings").glob("*.jsonl"))


def test_the_container_file_installs_what_its_command_needs() -> None:
    lines = (line for line in RECIPE.splitlines() if not line.startswith("#"))
    words = dict(line.split(maxsplit=1) for line in lines)

    assert list(words) == ["FROM", "COPY", "RUN", "WORKDIR", "CMD"]
    assert words["RUN"] == INSTALL.replace("install", "install --no-cache-dir")
    assert "pytest" in words["CMD"]
