"""System faults: under each fault a command ends with the right exit code and one line.

This file has the faults that the test process causes itself; `test_killed.py` has signals, memory
limits and dying processes.
"""

import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from io import StringIO
from pathlib import Path
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from typing import TextIO
from unittest.mock import patch

import pytest

from checks.cli import main as cli
from tests.checks.command import Ran, lockstep

# Commands whose last argument is a file or directory that they write.
WRITING = {
    "run, trace": ("run", "w.jsonl", "--trace"),
    "run, report": ("run", "w.jsonl", "--json"),
    "run, figures": ("run", "w.jsonl", "--figures"),
    "run, timeline": ("run", "w.jsonl", "--timeline"),
    "run, compared": ("run", "w.jsonl", "--compare", "admission=exact,shipped", "--json"),
    "explore, report": ("explore", "documented", "--json"),
    "explore, graph": ("explore", "documented", "--graph"),
    "explore, checkpoint": ("explore", "documented", "--max-states", "9", "--resume"),
    "fuzz, report": ("fuzz", "--target", "reference", "--episodes", "2", "--json"),
    "fuzz, checkpoint": ("fuzz", "--target", "reference", "--episodes", "2", "--resume"),
    "conform, page": ("conform", "template", "--episodes", "1", "--report"),
    "prove, report": ("prove", "PRV-PAD-1", "--json"),
    "replay, report": ("replay", "t.jsonl", "--json"),
    "replay, ITF": ("replay", "t.jsonl", "--itf"),
    "rules, report": ("rules", "SPY-VOL", "--json"),
}
WITHOUT_FAULT = {"explore, report": 1}
EACH_KIND = ("run, trace", "run, compared", "explore, report", "replay, report", "rules, report")

every_command = pytest.mark.parametrize("name", WRITING)
each_kind = pytest.mark.parametrize("name", EACH_KIND)


@cache
def trace() -> str:
    """The trace of the workload."""
    assert lockstep("run", "w.jsonl", "--trace", "t.jsonl").code == 0
    return Path("t.jsonl").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _files() -> None:
    lines = [f'{{"id": "{n}", "prompt_len": {n + 1}, "max_tokens": 4}}' for n in range(8)]
    Path("w.jsonl").write_text("\n".join(lines), encoding="utf-8")
    Path("t.jsonl").write_text(trace(), encoding="utf-8")


def files() -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for path in Path().rglob("*")
        if path.is_file() and path.parts[0] != "counterexamples"
    }


def is_one_line(ran: Ran, *words: str) -> bool:
    return (
        ran.err.startswith("lockstep: ")
        and ran.err.count("\n") == 1
        and all(word in ran.err for word in words)
    )


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Limit the size of every file to `size` bytes, as a full disk would."""
    before = getrlimit(RLIMIT_FSIZE)
    setrlimit(RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        setrlimit(RLIMIT_FSIZE, before)


def with_stdout(stdout: TextIO, *arguments: str) -> tuple[int, str]:
    """Run the command with this standard output; return its exit code and messages."""
    err = StringIO()
    with (
        patch.object(sys, "argv", ["lockstep", *arguments]),
        patch.object(sys, "stdout", stdout),
        patch.object(sys, "stderr", err),
    ):
        return cli.called(), err.getvalue()


# --- a full disk ----------------------------------------------------------------------------------


@every_command
def test_full_disk_at_an_output_is_a_failure_that_names_it(name: str) -> None:
    ran = lockstep(*WRITING[name], "/dev/full")
    if "--resume" in WRITING[name]:  # which is read first, and has no end
        assert (ran.code, is_one_line(ran, "/dev/full: file: found ")) == (2, True)
        return
    assert ran.code == 4
    assert is_one_line(ran, "failed: /dev/full: No space left on device")


@every_command
def test_output_that_does_not_fit_leaves_the_earlier_file_and_no_part(name: str) -> None:
    Path("out").write_text("earlier\n", encoding="utf-8")
    if "--resume" in WRITING[name]:
        Path("out").unlink()
    before = files()
    with file_size_limit(64):
        ran = lockstep(*WRITING[name], "out")
    assert ran.code == 4
    assert is_one_line(ran, "failed: ", "File too large")
    assert files() == before


@each_kind
def test_full_disk_behind_standard_output_is_a_failure_and_files_are_whole(name: str) -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        code, said = with_stdout(full, *WRITING[name], "out")
    assert code == 4
    assert said.startswith("lockstep: failed: standard output: No space left on device")
    assert "out" in said
    assert Path("out").stat().st_size


def test_counterexample_that_does_not_fit_is_named() -> None:
    with file_size_limit(64):
        ran = lockstep("explore", "documented", "--out", "found")
    assert ran.code == 4
    assert is_one_line(ran, "failed: found/documented-spy-vol-1.jsonl: File too large")
    assert not list(Path("found").iterdir())


# --- no permission, an output that is the input ---------------------------------------------------


@every_command
def test_output_that_is_not_permitted_is_refused_before_anything_runs(name: str) -> None:
    before = files()
    ran = lockstep(*WRITING[name], "/sys/out")
    assert (ran.code, ran.out) == (2, "")
    assert is_one_line(ran, "/sys/out", "permission denied")
    assert files() == before


@every_command
def test_output_that_is_another_file_of_the_command_is_refused(name: str) -> None:
    before, arguments = files(), WRITING[name]
    files_read = [argument for argument in arguments if argument in before]
    if files_read:
        ran = lockstep(*arguments, files_read[0])
    else:
        also = "--resume" if "--json" in arguments else "--json"
        also = "--out" if arguments[0] == "prove" else also
        ran = lockstep(*arguments, "same", also, "same")
        if arguments[0] in ("prove", "rules"):  # they have no other file
            return
    assert (ran.code, ran.out) == (2, "")
    assert is_one_line(ran, "allowed: another file than that of")
    assert files() == before


# --- a closed pipe, a clock that jumps ------------------------------------------------------------


@each_kind
def test_closed_pipe_is_incomplete_and_files_are_whole(name: str) -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "w", encoding="utf-8") as pipe:
        code, said = with_stdout(pipe, *WRITING[name], "out")
    assert code == 3
    assert said.startswith(
        "lockstep: incomplete: standard output was closed before all was written"
    )
    assert Path("out").stat().st_size


@each_kind
def test_clock_that_jumps_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = random.Random(0)
    monkeypatch.setattr(time, "time", lambda: jumps.uniform(-1e9, 1e9))
    ran = lockstep(*WRITING[name], "out")
    assert (ran.code, ran.err) == (WITHOUT_FAULT.get(name, 0), "")


# --- errors of ours -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ZeroDivisionError("by\ndesign"), "failed: ZeroDivisionError: by design (test_faults.py, "),
        (MemoryError(), "failed: the memory is used up"),
        (RecursionError("deep"), "failed: RecursionError: deep (test_faults.py, "),
        (KeyboardInterrupt(), "incomplete: ended by an interrupt"),
    ],
)
def test_error_of_ours_is_never_a_verdict(
    error: BaseException, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from checks.cli import run

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(run, "read_workload", fail)
    ran = lockstep("run", "w.jsonl")
    assert ran.code == (3 if isinstance(error, KeyboardInterrupt) else 4)
    assert is_one_line(ran, line)
