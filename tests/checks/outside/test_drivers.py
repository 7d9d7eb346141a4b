"""Drivers that misbehave: a refusal that names the place, or a verdict; nothing is left running."""

import json
import os
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from resource import RUSAGE_SELF, getrusage

import pytest

from checks.harness.driver import process
from checks.harness.driver.process import DriverProcess, driver_environment
from checks.harness.driver.protocol import DriverError
from tests.checks.command import lockstep
from tests.checks.outside.misbehaving import MISBEHAVING, Misbehaving
from tests.checks.outside.mutations import mutated

MOST_S = 120.0  # on a busy machine, with what is made smaller


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


@pytest.mark.parametrize("one", MISBEHAVING, ids=[one.name for one in MISBEHAVING])
def test_a_driver_that_misbehaves_is_refused_where_it_does(one: Misbehaving) -> None:
    path, began = one.file(Path.cwd()), time.monotonic()

    ran = lockstep("conform", path, "--time", "1", "--start-time", "5")

    assert ran.code in one.codes, ran.err
    assert one.word in " ".join((ran.out + ran.err).split())
    assert len(ran.err) < 5_000
    assert time.monotonic() - began < MOST_S
    until_none(path)


def test_standard_error_is_kept_in_bounded_memory() -> None:
    (one,) = (one for one in MISBEHAVING if one.name == "streams: no end of errors")
    before = getrusage(RUSAGE_SELF).ru_maxrss

    lockstep("driver", "check", one.file(Path.cwd()))

    assert getrusage(RUSAGE_SELF).ru_maxrss - before < 50_000  # kB, of 200 MB that it wrote


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
    (one,) = (one for one in MISBEHAVING if one.name == "streams: ends")
    path = one.file(Path.cwd())
    text = path.read_text().replace("newcomer = self", "assert False, 'by design'; newcomer = self")
    path.write_text(text[: text.index("if __name__")] + "serve(Toy)\n")
    monkeypatch.setenv("PYTHONOPTIMIZE", "1")

    ran = lockstep("conform", path, "--episodes", "1")

    assert ran.code == 1
    assert "by design" in ran.out


SPEAKS = """
import json, sys
lines = {lines!r}
for number, line in enumerate(lines):
    sys.stdout.buffer.write(line + b"\\n")
    sys.stdout.buffer.flush()
    if not sys.stdin.readline():
        break
"""


def said_by_the_template() -> list[bytes]:
    """What the template says in a small episode: hello, started, steps."""
    command = [sys.executable, str(process.DRIVER_FILES / "template.py")]
    config = {"max_num_seqs": 2, "block_size": 16, "chunk_size": 256}
    request = {"id": "a", "prompt": [1] * 9, "max_tokens": 3, "output_len": 3, "output": [1, 2, 3]}
    start = {"do": "start", "config": config, "requests": [request]}
    with closing(DriverProcess(command)) as driver:
        lines = [driver.hello().encode()]
        for message in (start, {"do": "play", "steps": [{"arrive": ["a"]}, {}, {}]}):
            driver.send(f"{json.dumps(message)}\n".encode())
            lines.append(driver.line(5, 5).encode())
    return lines


@pytest.mark.thorough
def test_lines_of_a_driver_that_are_wrong_in_a_place_are_refused_or_a_verdict() -> None:
    dice, lines, codes = Random(0), said_by_the_template(), dict[int, int]()
    for _ in range(200):
        spoilt, number = list(lines), dice.choice((0, 0, 1, 2, 2, 2))
        spoilt[number] = mutated(dice, lines[number]).replace(b"\n", b"")
        Path("driver.py").write_text(SPEAKS.format(lines=spoilt + spoilt[2:] * 9))

        ran = lockstep("conform", "driver.py", "--time", "1")

        assert ran.code in (0, 1, 2, 3), (spoilt, ran.err)
        codes[ran.code] = codes.get(ran.code, 0) + 1
    assert codes[2] > 50
    until_none(Path("driver.py").absolute())


def test_a_driver_that_cannot_be_started_leaves_no_process() -> None:
    with pytest.raises(DriverError):
        DriverProcess(["./none"])
    until_none(Path("none").absolute())
