"""`lockstep bisect` with two releases that are the template, one of them faulty."""

import sys
from pathlib import Path

import pytest

from checks.releases import bisecting, environments, recipes
from checks.releases.recipes import Recipe
from tests.checks.command import lockstep
from tests.checks.harness.driver.files import TEMPLATE, faulty_driver

RELEASES = (
    Recipe("toy", "1.2", "template.py", vllm="0"),
    Recipe("toy", "1.1", "mine.py", vllm="0"),
    Recipe("toy", "1.0", "template.py", vllm="0"),
)


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A case in which 1.1 differs; 1.0 is not installed."""
    monkeypatch.setenv("LOCKSTEP_DRIVERS", str(tmp_path / "drivers"))
    faulty_driver(tmp_path, "last come first served")
    (tmp_path / "template.py").write_text(TEMPLATE.read_text(encoding="utf-8"), encoding="utf-8")
    ran = lockstep("conform", "mine.py", "--episodes", 1)
    for room in (bisecting, environments, recipes):
        monkeypatch.setattr(room, "RECIPES", RELEASES)
    monkeypatch.setattr(environments, "DRIVER_FILES", tmp_path)
    for recipe in RELEASES[:2]:
        environment = environments.environment_of(recipe)
        environment.python.parent.mkdir(parents=True)
        environment.python.symlink_to(sys.executable)
        environment.note([part.what for part in recipe.installations()])
    assert ran.code == 1
    return str(next(Path("findings").glob("*.jsonl")))


def test_the_release_that_differs_is_named(case: str) -> None:
    ran = lockstep("bisect", case, "--driver", "toy", "--versions", "1.0..1.2")

    lines = [line.strip().split(maxsplit=1) for line in ran.out.splitlines()]
    assert (ran.code, ran.err) == (1, "")
    assert lines[1] == ["toy==1.0", "not installed"]
    assert lines[2] == ["toy==1.1", "divergence after 0 equal steps: scheduled"]
    assert lines[3][1].startswith("as the reference in ")


def test_releases_that_all_do_as_the_reference(case: str) -> None:
    right = lockstep("bisect", case, "--driver", "toy", "--versions", "1.2..1.2")
    unknown = lockstep("bisect", case, "--driver", "toy", "--versions", "1.0..1.0")

    assert right.code == 0
    assert unknown.code == 3  # not installed is no answer


@pytest.mark.parametrize(
    ("span", "told"),
    [
        ("1.0..9", "--versions: found '1.0..9'; allowed: FIRST..LAST out of 1.0, 1.1, 1.2"),
        ("1.2..1.0", "--versions: found '1.2..1.0'; allowed: the older release in front"),
    ],
)
def test_a_span_that_is_none_is_refused(case: str, span: str, told: str) -> None:
    ran = lockstep("bisect", case, "--driver", "toy", "--versions", span)

    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err
