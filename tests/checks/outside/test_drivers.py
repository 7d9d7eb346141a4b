"""Drivers that misbehave: a refusal that names the place, or a verdict; nothing is left running."""

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import pytest

from checks.harness.campaigns.shrinking import Budget
from checks.harness.driver import process
from checks.harness.driver.process import DRIVER_FILES, DriverProcess, driver_environment
from checks.harness.driver.protocol import DriverError
from tests.checks.command import lockstep
from tests.checks.outside.here import Spoil, drivers_here
from tests.checks.outside.memory import takes_less_than
from tests.checks.outside.misbehaving import COMBINED, MISBEHAVING, Misbehaving
from tests.checks.outside.mutations import mutated
from tests.checks.outside.test_printing import is_clean

MOST_S = 120.0  # on a busy machine, shrinking included
MOST_KB = 1_000_000
LINES = 600  # that are wrong in a place, of each policy


@pytest.fixture(autouse=True)
def _little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "ANSWER_BEYOND_S", 1.0)


def left_running(driver: Path) -> list[str]:
    """The processes that began in the driver's directory, and still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            is_there = Path(os.readlink(path / "cwd")) == driver.parent
            if is_there and int(path.name) != os.getpid():
                found.append(command)
    return found


def until_none(driver: Path) -> None:
    end = time.monotonic() + 5
    while left := left_running(driver):
        assert time.monotonic() < end, left
        time.sleep(0.05)


def named(name: str) -> Misbehaving:
    return next(driver for driver in MISBEHAVING if driver.name == name)


def must_be_refused_or_judged(driver: Misbehaving) -> None:
    """It is tried as a user would: it ends soon with an allowed code, and leaves no process."""
    path, began = driver.file(Path.cwd()), time.monotonic()

    ran = lockstep("conform", path, "--time", "1", "--start-time", "5")

    assert ran.code in driver.codes, ran.err
    assert driver.word in " ".join((ran.out + ran.err).split())
    assert len(ran.err) < 5_000
    assert is_clean(ran.out + ran.err)
    if ran.code == 2:
        assert "driver" in ran.err
    assert time.monotonic() - began < MOST_S
    until_none(path)


@pytest.mark.parametrize("driver", MISBEHAVING, ids=[driver.name for driver in MISBEHAVING])
def test_a_driver_that_misbehaves_is_refused_where_it_does(driver: Misbehaving) -> None:
    must_be_refused_or_judged(driver)


@pytest.mark.thorough
@pytest.mark.parametrize("driver", COMBINED, ids=[driver.name for driver in COMBINED])
def test_each_misbehaviour_at_each_moment(driver: Misbehaving) -> None:
    with takes_less_than(MOST_KB):
        must_be_refused_or_judged(driver)


def test_standard_error_is_kept_in_bounded_memory() -> None:
    with takes_less_than(50_000):  # kB, of 200 MB that it wrote
        lockstep("driver", "check", named("streams: no end of errors").file(Path.cwd()))


def test_a_group_ends_with_its_driver() -> None:
    Path("parent.py").write_text(
        "import subprocess, time\n"
        "subprocess.Popen(['sleep', '900'])\n"
        "print('{}', flush=True)\n"
        "time.sleep(900)\n"
    )
    with closing(DriverProcess([sys.executable, "parent.py"])) as driver:
        assert driver.hello() == "{}"
        assert len(left_running(Path("parent.py").absolute())) >= 2

    until_none(Path("parent.py").absolute())


@pytest.mark.parametrize("name", ["OPTIMIZE", "INSPECT", "WARNINGS", "HOME", "STARTUP", "SAFEPATH"])
def test_what_changes_python_does_not_reach_a_driver(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"PYTHON{name}", "1")
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    monkeypatch.setenv("OTHER", "kept")

    variables = driver_environment()

    assert f"PYTHON{name}" not in variables
    assert (variables["PYTHONHASHSEED"], variables["OTHER"]) == ("7", "kept")


def test_assertions_of_a_release_hold_though_ours_are_switched_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = named("streams: ends").file(Path.cwd())
    text = path.read_text().replace("newcomer = self", "assert False, 'by design'; newcomer = self")
    path.write_text(text[: text.index("if __name__")] + "serve(Toy)\n")
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")

    ran = lockstep("conform", path, "--episodes", "1")

    assert ran.code == 1
    assert "by design" in ran.out


def spoiling(dice: Random) -> Spoil:
    """Makes one line of a driver wrong in a place, or each from one on."""
    first, goes_on = dice.choice((0, 0, 1, 2, 2, 3, 5)), dice.random() < 0.5
    numbers = count()

    def spoil(line: bytes) -> bytes:
        number = next(numbers)
        is_due = number == first or (goes_on and number > first)
        return mutated(dice, line).partition(b"\n")[0] if is_due else line

    return spoil


@pytest.mark.parametrize("name", [path.name for path in DRIVER_FILES.glob("template*.py")])
@pytest.mark.parametrize(
    "seeds", [range(6), pytest.param(range(LINES), marks=pytest.mark.thorough)]
)
def test_lines_of_a_driver_that_are_wrong_in_a_place(
    name: str, seeds: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checks.cli.campaigns.Budget", partial(Budget, 300))  # shrinking is slow
    Path(name).write_bytes((DRIVER_FILES / name).read_bytes())
    codes = Counter[int]()
    for seed in seeds:
        with drivers_here(spoiling(Random(seed))):
            ran = lockstep("conform", name, "--episodes", "1")
        assert ran.code in (0, 1, 2, 3), (seed, ran.err)
        assert is_clean(ran.out + ran.err), seed
        if ran.code == 2:
            assert "driver" in ran.err, seed
        codes[ran.code] += 1

    assert codes[2] >= len(seeds) // 4


def test_a_driver_that_cannot_be_started_leaves_no_process() -> None:
    with pytest.raises(DriverError):
        DriverProcess(["./none"])
    until_none(Path("none").absolute())
