"""Each benchmark runs to its end at a small size."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.released import RELEASED, Sizes
from checks.harness.driver.process import DRIVER_FILES

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
STAND_IN = ROOT / "tests" / "checks" / "drivers" / "nano_stand_in"
TINY, SHARED = ("examples/tiny.jsonl", "examples/shared_prefix.jsonl")
SMALL = {
    "device": ("--repeat", "2"),
    "explorers": ("--against", "reference", "--instances", "1"),
    "measure": ("--requests", "3", "--instances", "1"),
    "memory": ("--policy", "nano-vllm", "--requests", "40"),
    "paged": (TINY, "--limit", "3"),
    "rejections": ("--cases", "50"),
    "scheduler": ("--rows", "1,3", "--waiting", "0,5", "--steps", "5"),
    "scheduler, long service": ("--long-service", "--requests", "100010"),
    "simulators": ("examples/mooncake_sample.jsonl", "--limit", "5", "--environments", "missing"),
    "traces": (SHARED, "--limit", "3"),
}
SLOW = {"explorers", "scheduler, long service"}


def ran(name: str, *arguments: str, **variables: str) -> str:
    """The output of the benchmark."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{name}.py"), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def each(names: list[str]) -> pytest.MarkDecorator:
    marked = [
        pytest.param(name, marks=[pytest.mark.thorough] if name in SLOW else []) for name in names
    ]
    return pytest.mark.parametrize("name", marked)


@each(list(SMALL))
def test_a_benchmark_runs_small_and_prints_figures(name: str) -> None:
    lines = ran(name.partition(",")[0], *SMALL[name]).splitlines()

    assert sum(any(character.isdigit() for character in line) for line in lines) >= 2


def test_every_benchmark_is_run() -> None:
    names = {path.stem for path in BENCHMARKS.glob("*.py")}

    assert {line.partition(",")[0] for line in SMALL} | {"released"} == names


def test_a_release_is_measured_by_its_driver() -> None:
    sizes = ("2", "3", "4", "600", "100", "0", "1")

    said = ran("released", "nano-vllm", *sizes, LOCKSTEP_NANO_VLLM=str(STAND_IN))

    assert said.count(",") == 3


@pytest.mark.parametrize("driver", RELEASED)
def test_a_release_gets_each_key_that_its_driver_reads(driver: str) -> None:
    own = DRIVER_FILES / f"{RELEASED[driver].module}.py"
    files = [own] if driver == "nano-vllm" else [own, DRIVER_FILES / "vllm_driver.py"]
    sources = [path.read_text(encoding="utf-8") for path in files]
    keys = {key for source in sources for key in re.findall(r'\bconfig\["(\w+)"\]', source)}

    assert keys
    assert keys - RELEASED[driver].config(Sizes(2, 600, 100, 0, True)).keys() == set()


@pytest.mark.thorough
@pytest.mark.parametrize("driver", ["sendnn", "nano-vllm", "vllm-v1"])
def test_the_engine_is_measured_against_each_release(driver: str) -> None:
    from checks.harness.driver.protocol import DriverError
    from checks.releases.environments import command_of

    try:
        command_of(driver)
    except DriverError as missing:
        pytest.skip(str(missing))
    small = ("--rows", "1,2", "--waiting", "0,3", "--steps", "5", "--against", driver)

    assert "times the engine's" in ran("scheduler", "--policy", "spyre", *small)
