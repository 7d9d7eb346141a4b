"""Releases that are the template, of which one is faulty."""

import sys
from pathlib import Path

import pytest

from checks.releases import bisecting, environments, recipes
from checks.releases.recipes import Recipe
from tests.checks.harness.driver.files import TEMPLATE, faulty_driver


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases 1.2 and 1.1, of which 1.1 serves the newest request first; 1.0 is not installed."""
    monkeypatch.setenv("LOCKSTEP_DRIVERS", str(tmp_path / "drivers"))
    faulty_driver(tmp_path, "last come first served")
    (tmp_path / "template.py").write_text(TEMPLATE.read_text(encoding="utf-8"), encoding="utf-8")
    files = {"1.2": "template.py", "1.1": "mine.py", "1.0": "template.py"}
    releases = tuple(Recipe("toy", version, file, vllm="0") for version, file in files.items())
    for room in (bisecting, environments, recipes):
        monkeypatch.setattr(room, "RECIPES", releases)
    monkeypatch.setattr(environments, "DRIVER_FILES", tmp_path)
    for recipe in releases[:2]:
        environment = environments.environment_of(recipe)
        environment.python.parent.mkdir(parents=True)
        environment.python.symlink_to(sys.executable)
        environment.note([part.what for part in recipe.installations()])
