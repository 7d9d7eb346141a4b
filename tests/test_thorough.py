"""The thorough tier: every thorough test is in one part, and overdue parts are named."""

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import thorough
from tests.thorough import PARTS, ROOT, Counts, main, note, overdue, part_ages, run_part


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a commit, whose parts were never green."""
    monkeypatch.setattr(thorough, "ROOT", tmp_path)
    monkeypatch.setattr(thorough, "NOTES", tmp_path / "thorough.json")
    git(tmp_path, "init", "-q")
    commits(tmp_path, 1)
    return tmp_path


def git(repository: Path, *arguments: str) -> str:
    own = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(repository), *own, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commits(repository: Path, count: int) -> None:
    for _ in range(count):
        git(repository, "commit", "-q", "--allow-empty", "-m", "Change")


GREEN = Counts(5, 2)


def green(_paths: Sequence[str]) -> Counts:
    return GREEN


def test_every_thorough_test_is_in_one_part() -> None:
    marked = re.compile(r"^(?!.*re\.compile).*\bmark\.thorough\b", re.MULTILINE)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if marked.search(path.read_text(encoding="utf-8")):
            own = path.relative_to(ROOT)
            parts = [
                part
                for part, places in PARTS.items()
                if any(own.is_relative_to(place) for place in places)
            ]
            assert len(parts) == 1, f"{own}: {parts}"


def test_every_part_is_there() -> None:
    assert [
        place for places in PARTS.values() for place in places if not (ROOT / place).exists()
    ] == []


def test_a_green_part_is_noted_with_its_commit(repository: Path) -> None:
    assert run_part("browser", green)

    head = git(repository, "rev-parse", "HEAD")
    noted = json.loads(thorough.NOTES.read_text())
    assert noted == {"browser": {"commit": head, "minutes": 0, "passed": 5, "skipped": 2}}
    commits(repository, 3)
    assert part_ages(thorough.NOTES) == dict.fromkeys(PARTS) | {"browser": 3}


def test_a_red_part_and_a_changed_checkout_are_not_noted(repository: Path) -> None:
    assert not run_part("browser", lambda _: None)
    (repository / "new.py").touch()
    assert run_part("browser", green)

    assert not thorough.NOTES.exists()


def test_parts_that_are_overdue_are_named(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thorough, "MOST_COMMITS", 3)
    head = git(repository, "rev-parse", "HEAD")
    for part in PARTS:
        note(thorough.NOTES, part, head, 7, GREEN)
    commits(repository, 3)
    assert overdue(thorough.NOTES) is None

    commits(repository, 1)
    note(thorough.NOTES, "browser", git(repository, "rev-parse", "HEAD"), 7, GREEN)
    note(thorough.NOTES, "proofs", "0" * 40, 7, GREEN)  # of another history

    line = overdue(thorough.NOTES)
    assert line is not None
    assert line.startswith("thorough tier, last green: commands (4 commits ago); ")
    assert "; never proofs. Run: " in line
    assert "browser" not in line


def test_where_there_is_no_repository_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thorough, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    assert overdue(tmp_path / "none.json") is None


def test_without_names_the_oldest_part_is_run(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Sequence[str]] = []

    def run(paths: Sequence[str]) -> Counts:
        ran.append(paths)
        return GREEN

    monkeypatch.setattr(thorough, "run_tests", run)
    for part in PARTS:
        note(thorough.NOTES, part, git(repository, "rev-parse", "HEAD"), 7, GREEN)
        if part == "proofs":
            commits(repository, 1)
    git(repository, "add", "-A")

    assert main([]) == 0
    assert ran == [PARTS["browser"]]
    assert main(["proofs", "users"]) == 0
    assert ran[1:] == [PARTS["proofs"], PARTS["users"]]


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["browsers"])

    assert "'browsers' is no part; there are: browser, commands" in capsys.readouterr().err
