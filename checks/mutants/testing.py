"""Run the project's own tests on survivors: tests pin numbers that no rule knows."""

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import monotonic

from attrs import evolve

from checks.mutants.killing import Outcome
from checks.mutants.planting import MUTANT
from checks.mutants.rooms import CORE, ROOT
from checks.mutants.sites import Mutant
from spec.core.errors import InputError

_TESTS = {
    "spec": ("spec", "reference", "engine", "checks/policies", "checks/proofs", "checks/faults"),
    "reference": ("reference", "checks/policies", "checks/faults"),
    "engine": ("engine", "checks/policies", "checks/faults"),
}
_SECONDS = 900.0  # tests that take longer count as hanging


def refuse_without_tests() -> None:
    """Refuse an installation without tests.

    Raises:
        InputError: this is no checkout with tests.
    """
    if not (ROOT / "tests").is_dir():
        raise InputError("--tests", str(ROOT), "a checkout of the project, which has its tests")


def tested(until: float, outcome: Outcome) -> Outcome | None:
    """The outcome of a survivor after the tests; None if the time is over.

    `until`: on the clock of `time.monotonic`.
    """
    if monotonic() >= until:
        return None
    name = failing_test(outcome.mutant)
    return outcome if name is None else evolve(outcome, by=name, means="tests")


def failing_test(mutant: Mutant) -> str | None:
    """The first test that fails with the mutant in it; None if all pass."""
    files = map(str, sorted(test_files(mutant), key=partial(_distance, mutant)))
    options = ["-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, *files]
    try:
        ran = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, MUTANT: mutant.id},
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "hangs"
    failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if ran.returncode == 0:
        return None
    return failed[0].split(" ")[1] if failed else "collecting"


def _distance(mutant: Mutant, path: Path) -> tuple[int, str]:
    """The sort key of a test file: files with a path like the mutated module's come first."""
    parts = {*Path(mutant.path).with_suffix("").parts}
    return -len(parts & {*path.parts}), str(path)


def test_files(mutant: Mutant) -> Iterator[Path]:
    """The test files that mention the mutant's policy, or all if the mutant's module is shared.

    Only folders whose tests can run the mutated room are searched.
    """
    package = Path(mutant.path).parts[1]
    for folder in _TESTS[mutant.room]:
        for path in (ROOT / "tests" / folder).rglob("test_*.py"):
            if package == CORE or package in path.read_text(encoding="utf-8"):
                yield path.relative_to(ROOT)
