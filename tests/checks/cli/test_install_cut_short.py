"""`driver install` completes after an interrupted call and beside a parallel call.

Python and pip are a script that takes its time, and leaves behind what they leave when they are
killed: a Python without pip, a package in part that pip takes for installed.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from random import Random
from time import sleep

import pytest

from checks.releases.environments import environment_of
from checks.releases.recipes import RECIPES

ROOT = Path(__file__).parents[3]
PARTS = len(list(RECIPES[0].installations()))
SLOW_PYTHON = f"""#!{sys.executable}
import os, shutil, sys, time
from pathlib import Path

own, arguments = Path(sys.argv[0]), sys.argv[1:]
if arguments[:2] == ["-m", "venv"]:
    venv = Path(arguments[-1])
    shutil.rmtree(venv, ignore_errors=True)
    (venv / "bin").mkdir(parents=True)
    shutil.copy(own, venv / "bin" / "python")
    time.sleep(0.15)
    (venv / "pip").touch()
else:
    venv = own.parent.parent
    if not (venv / "pip").exists():
        sys.exit("No module named pip")
    while Path("hold").exists():
        time.sleep(0.02)
    name = arguments[-1].replace("/", "_")
    if not (venv / name).exists() or "--force-reinstall" in arguments:
        (venv / name).write_text("in part")
        time.sleep(0.1)
        (venv / name).write_text("whole")
"""
INSTALLING = """
import sys
from types import SimpleNamespace
from checks.cli.main import main
from checks.releases import environments
environments.sys = SimpleNamespace(executable="./slow-python", version_info=sys.version_info)
main()
"""


@pytest.fixture(autouse=True)
def _slow_python() -> None:
    path = Path("slow-python")
    path.write_text(SLOW_PYTHON)
    path.chmod(0o755)


def installing() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", INSTALLING, "driver", "install", "sendnn", "--into", "there"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def is_whole() -> bool:
    environment = environment_of(RECIPES[0], Path("there"))
    packages = [path for path in (environment.directory / "venv").iterdir() if path.is_file()]
    parts = {path.read_text() for path in packages if path.name != "pip"}
    return environment.is_complete and parts == {"whole"} and len(packages) == PARTS + 1


def cut_short(dice: Random) -> None:
    """Start an installation and kill it: all processes, or the command alone."""
    process = installing()
    number = dice.choice((signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGKILL))
    assert process.stdout is not None
    process.stdout.readline()  # it has begun
    sleep(dice.uniform(0, 1.1))
    with suppress(ProcessLookupError):
        if dice.random() < 0.5:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
    process.communicate(timeout=300)


def assert_installation_completes() -> None:
    process = installing()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    assert is_whole()


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(100, 130))]
)
def test_an_installation_cut_short_completes(seed: int) -> None:
    dice = Random(seed)
    for _ in range(2):
        cut_short(dice)
    assert_installation_completes()


@pytest.mark.thorough
def test_two_installations_at_once_are_one() -> None:
    """They begin together; which of them waits, if any, is a matter of how busy the machine is."""
    both = [installing(), installing()]
    said = "".join(process.communicate(timeout=300)[0] for process in both)

    assert [process.returncode for process in both] == [0, 0]
    assert is_whole()
    assert said.count("there already") == PARTS


def test_an_installation_waits_for_another() -> None:
    Path("hold").touch()
    first = installing()
    while not environment_of(RECIPES[0], Path("there")).python.exists():  # made under the lock
        assert first.poll() is None
        sleep(0.02)
    second = installing()
    assert second.stdout is not None
    begins = second.stdout.readline() + second.stdout.readline()
    Path("hold").unlink()
    said = [process.communicate(timeout=300)[0] for process in (first, second)]

    assert "waiting for another installation" in begins
    assert [first.returncode, second.returncode] == [0, 0]
    assert [text.count("there already") for text in said] == [0, PARTS]
    assert is_whole()


def test_a_python_without_pip_is_made_again() -> None:
    environment = environment_of(RECIPES[0], Path("there"))
    environment.python.parent.mkdir(parents=True)
    environment.python.write_bytes(Path("slow-python").read_bytes())
    environment.python.chmod(0o755)

    assert_installation_completes()
