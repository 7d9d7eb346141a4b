"""Pages of defects agree with their recordings, and their tests fail on the release."""

import re
import subprocess
from pathlib import Path

import pytest

from checks.harness.campaigns.recording import read_recording
from checks.releases.defects import (
    DEFECTS,
    RECORDED,
    defect_pages,
    recording_breaches,
    recording_names,
)
from checks.releases.environments import environment_of
from checks.releases.recipes import recipe_of

INDEX = DEFECTS / "index.md"
PAGES = [path for path in sorted(DEFECTS.glob("*.md")) if path != INDEX]
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
PROJECTS = {"sendnn": "sendnn", "vllm": "vllm-v1"}  # drivers, as the index has the helpers
PARTS = ["**What happens.**", "**Versions.**", "## The fewest requests", "## A test"]
NOT_RECORDED = "\nNot recorded: "  # what the machine does not model, so that no rule judges it
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
FAILS = """\
import sys, pathlib, tempfile
import test_defect
test, = (one for name, one in vars(test_defect).items() if name.startswith("test_"))
try:
    test(pathlib.Path(tempfile.mkdtemp()))
except AssertionError:
    sys.exit(7)
"""


def test_what_pages_show_of_recordings_is_what_these_have() -> None:
    assert {path: path.read_text(encoding="utf-8") for path, _ in defect_pages()} == dict(
        defect_pages()
    )


@each_page
def test_a_defect_names_the_rule_that_its_recording_breaks(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    prose = text.partition("## The fewest requests")[0]
    broken = {
        rule
        for name in recording_names(text)
        for rules in recording_breaches(name).values()
        for rule in rules
    }

    assert [part for part in [*PARTS, "## What a repair would be"] if part not in text] == []
    if NOT_RECORDED in text:
        assert not recording_names(text)
        return
    assert {*broken} & {*re.findall(r"[A-Z0-9]+-[A-Z]+-\d+|LIF-\d+", prose)} or "crash" in broken
    assert broken


def test_every_defect_is_in_the_list() -> None:
    listed = INDEX.read_text(encoding="utf-8")

    assert [page.name for page in PAGES if f"({page.name})" not in listed] == []


def _release(text: str) -> str:
    """The release of the recording, or else the last one that the page names as one that has it."""
    for name in recording_names(text):
        return read_recording(RECORDED / f"{name}.jsonl").hello.release.split()[1]
    versions = text.partition("**Versions.**")[2].partition("\n\n")[0]
    found: list[str] = re.findall(r"\d+\.\d+\.\d+", versions)
    return found[-1]


@pytest.mark.thorough
@each_page
def test_the_test_of_a_defect_fails_on_the_release(page: Path, tmp_path: Path) -> None:
    project, driver = next(item for item in PROJECTS.items() if page.name.startswith(item[0]))
    recipe = recipe_of(driver, _release(page.read_text(encoding="utf-8")))
    if recipe is None or not environment_of(recipe).is_complete:
        pytest.skip(f"not installed: {driver}")
    helpers = dict(zip(PROJECTS, CODE.findall(INDEX.read_text(encoding="utf-8")), strict=True))
    helper, (test,) = helpers[project], CODE.findall(page.read_text(encoding="utf-8"))
    (tmp_path / "steps.py").write_text(helper)
    (tmp_path / "test_defect.py").write_text(test)

    ran = subprocess.run(
        [environment_of(recipe).python, "-c", FAILS],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode == 7, ran.stderr[-2000:]
