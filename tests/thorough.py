"""The thorough tier in parts, and the last green commit of each part.

    ./bootstrap python -m tests.thorough            # the part that was green longest ago
    ./bootstrap python -m tests.thorough browser    # these parts
    ./bootstrap python -m tests.thorough --all

Each part takes less than an hour on two cores. One that is green, at a commit without changes, is
noted in `tests/thorough.json`, which belongs into the next commit. The fast tier says which parts
are overdue.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import NamedTuple

from junitparser import JUnitXml

ROOT = Path(__file__).resolve().parents[1]
NOTES = ROOT / "tests" / "thorough.json"
MOST_COMMITS = 50  # since a part was green
MOST_SECONDS = 3_600
_CORES = "2"
_STEAL = ("--dist", "worksteal")  # few tests take most of the time

_POLICIES, _CHECKS = "tests/checks/policies", "tests/checks"
_COMMANDS = f"{_CHECKS}/cli"
PARTS: Mapping[str, Sequence[str]] = {
    "browser": ("tests/browser", f"{_CHECKS}/book"),
    "commands": (
        f"{_COMMANDS}/test_install_cut_short.py",
        f"{_COMMANDS}/test_killed.py",
        f"{_COMMANDS}/test_limits.py",
        f"{_COMMANDS}/test_resume.py",
        f"{_COMMANDS}/test_simulate.py",
    ),
    "drivers": (f"{_CHECKS}/drivers", f"{_CHECKS}/releases"),
    "engines": (f"{_POLICIES}/test_engines.py", f"{_POLICIES}/test_engine_faults.py"),
    "explore": (
        f"{_CHECKS}/explore",
        f"{_CHECKS}/test_evidence.py",
        f"{_CHECKS}/test_measured_claims.py",
        f"{_POLICIES}/spyre/test_large.py",
    ),
    "faults": (f"{_CHECKS}/faults",),
    "files": (f"{_CHECKS}/outside", f"{_CHECKS}/export"),
    "harness": (f"{_CHECKS}/harness", f"{_CHECKS}/test_cluster.py"),
    "nano-vllm": (f"{_POLICIES}/nano_vllm",),
    "mutants": (f"{_CHECKS}/mutants", f"{_COMMANDS}/test_mutants.py"),
    "proofs": (f"{_CHECKS}/proofs",),
    "recipes": ("tests/test_recipes.py",),
    "rooms": ("tests/engine", "tests/reference", "tests/spec"),
    "spyre-faults": (
        f"{_POLICIES}/spyre/test_compiled_graph.py",
        f"{_POLICIES}/spyre/test_compiled_rules.py",
        f"{_POLICIES}/spyre/test_engine.py",
    ),
    "graphs": (f"{_POLICIES}/test_engine_graph.py",),
    "users": (
        *(
            "tests/lockstep",
            "tests/test_benchmarks.py",
            "tests/test_bootstrap.py",
            "tests/test_readme.py",
        ),
        f"{_CHECKS}/first_sight",
        "tests/test_wheel.py",
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run parts; the exit code is 0 if all of them were green."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.thorough", description="Run parts of the thorough tier."
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--all", action="store_true", help="all parts, the oldest first")
    options = parser.parse_args(arguments)
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"{unknown[0]!r} is no part; there are: {', '.join(PARTS)}")
    ages = part_ages(NOTES)
    oldest = sorted(PARTS, key=lambda part: -_order(ages[part]))
    parts = options.parts or (oldest if options.all else oldest[:1])
    green = [run_part(part, run_tests) for part in parts]  # one that is red does not end it
    return int(not all(green))


class Counts(NamedTuple):
    """How many tests of a part passed, and how many had nothing to work on, such as a release."""

    passed: int
    skipped: int


def run_part(part: str, run: Callable[[Sequence[str]], Counts | None]) -> bool:
    """Run a part, and note it if it was green; true if it was."""
    print(f"thorough tier, {part}: {' '.join(PARTS[part])}", flush=True)
    began, commit, was_clean = monotonic(), git("rev-parse", "HEAD"), not changes()
    counts = run(PARTS[part])
    minutes = (monotonic() - began) / 60
    found = "RED" if counts is None else f"green: {counts.passed} passed, {counts.skipped} skipped,"
    print(f"thorough tier, {part}: {found} after {minutes:.0f} minutes", flush=True)
    if counts is None:
        return False
    if was_clean and not changes() and commit == git("rev-parse", "HEAD"):
        note(NOTES, part, commit or "", minutes, counts)
    else:
        print(f"not noted: the checkout is not as a commit has it; {NOTES.name} stays as it is")
    return True


def run_tests(paths: Sequence[str]) -> Counts | None:
    """Run the thorough tests of these paths; None if one fails, none is there, or time is over."""
    with TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        pytest = [
            sys.executable,
            "-m",
            "pytest",
            "--thorough",
            "-m",
            "thorough",
            "-n",
            _CORES,
            *_STEAL,
        ]
        command = [*pytest, "-q", "--junitxml", str(report), *paths]
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
        try:
            code = process.wait(MOST_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"stopped after {MOST_SECONDS // 60} minutes: make two parts of it", flush=True)
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if code != 0:
            return None
        suite = JUnitXml.fromfile(str(report))
        return Counts(suite.tests - suite.skipped, suite.skipped)


# --- notes ----------------------------------------------------------------------------------------


def note(path: Path, part: str, commit: str, minutes: float, counts: Counts) -> None:
    """Note that a part was green at a commit: a line of the file for each part."""
    green = {"commit": commit, "minutes": round(minutes), **counts._asdict()}
    noted = {**noted_parts(path), part: green}
    lines = (f" {json.dumps(part)}: {json.dumps(noted[part])}" for part in sorted(noted))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def noted_parts(path: Path) -> dict[str, dict[str, object]]:
    """The noted run of each part."""
    try:
        noted: dict[str, dict[str, object]] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return noted


def part_ages(path: Path) -> dict[str, int | None]:
    """The age of each part's last green run in commits; None if it is not in this history."""
    noted = noted_parts(path)
    return {part: _age(str(noted.get(part, {}).get("commit", ""))) for part in PARTS}


def _age(commit: str) -> int | None:
    if not commit or git("merge-base", "--is-ancestor", commit, "HEAD") is None:
        return None
    count = git("rev-list", "--count", f"{commit}..HEAD")
    return None if count is None else int(count)


def _order(age: int | None) -> float:
    return float("inf") if age is None else age


def overdue(path: Path = NOTES) -> str | None:
    """A line that names the parts that were not green for many commits; None if there are none."""
    if git("rev-parse", "HEAD") is None:
        return None  # no checkout
    ages = part_ages(path)
    late = [
        f"{part} ({age} commits ago)" for part, age in ages.items() if (age or 0) > MOST_COMMITS
    ]
    never = [part for part, age in ages.items() if age is None]
    said = [*late, *([f"never {', '.join(never)}"] if never else [])]
    if not said:
        return None
    return f"thorough tier, last green: {'; '.join(said)}. Run: python -m tests.thorough"


# --- the checkout ---------------------------------------------------------------------------------


def git(*arguments: str) -> str | None:
    """The output of git for this checkout; None if git fails or is missing."""
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return None if done.returncode else done.stdout.strip()


def changes() -> list[str]:
    """The files that are not as the commit has them, but for the notes."""
    lines = (git("status", "--porcelain") or "").splitlines()
    return [line for line in lines if not line.endswith(NOTES.relative_to(ROOT).as_posix())]


if __name__ == "__main__":
    sys.exit(main())
