"""Start and end of the command: signals and start-up errors have codes that no verdict has."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.checks.command import lockstep

ROOT = Path(__file__).parents[3]
CALLS_IT = """
import sys
from checks.cli.main import called
sys.argv = ["lockstep", "run", "w.jsonl", "--using", "reference"]
print("begins", flush=True)
code = called()
print("goes on", code, flush=True)
"""


def started(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [sys.executable, *command], env=environment, text=True, capture_output=True, check=False
    )


def test_a_signal_that_ended_a_command_ends_the_program_that_called_it() -> None:
    lines = (f'{{"id": "{n}", "prompt_len": 60, "max_tokens": 90}}' for n in range(4_000))
    Path("w.jsonl").write_text("\n".join(lines))
    process = subprocess.Popen(
        [sys.executable, "-c", CALLS_IT],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begins\n"
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)

    assert process.returncode == -signal.SIGTERM
    assert "goes on" not in out
    assert "lockstep: incomplete: ended by SIGTERM" in err


def test_what_cannot_be_imported_is_a_failure_of_the_tool() -> None:
    Path("z3.py").write_text("raise ImportError('libz3.so: cannot open')\n")
    Path("attrs.py").write_text("raise ImportError('no attrs here')\n")

    ran = started("-m", "lockstep", "rules", PYTHONPATH=f"{Path.cwd()}{os.pathsep}{ROOT}")

    assert (ran.returncode, ran.stdout) == (4, "")
    assert ran.stderr == ("lockstep: failed: it cannot be loaded: ImportError: no attrs here\n")


def test_python_without_docstrings_is_refused_at_the_start() -> None:
    ran = started("-m", "lockstep", "--help", PYTHONOPTIMIZE="2")

    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("lockstep: PYTHONOPTIMIZE: found 2; allowed: 0 or 1")
    assert ran.stderr.count("\n") == 1


def test_a_working_directory_that_was_removed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    ran = lockstep("rules", "LIF-1")

    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "lockstep: cannot read the working directory: no such file or directory\n"
    monkeypatch.chdir(tmp_path)
