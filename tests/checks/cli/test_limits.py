"""Limits of a command: time gaps in workloads, slow drivers, memory, terminals."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from checks.cli import common
from checks.harness.driver import process
from tests.checks.command import lockstep

ROOT = Path(__file__).parents[3]
HELLO = '{"format": "lockstep-driver", "version": 1, "name": "x", "release": "x 1"}'


def in_a_process(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command as a shell runs it."""
    command = f'{sys.executable} -c "from checks.cli.main import main; main()" {line}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        command, shell=True, capture_output=True, text=True, env=environment, check=False
    )


# --- idle gaps ------------------------------------------------------------------------------------

GAP = """
{"id": "0", "arrival": 0, "prompt_len": 60, "max_tokens": 4}
{"id": "1", "arrival": 1000000000, "prompt_len": 60, "max_tokens": 4}
{"id": "2", "arrival_s": 1000000000, "prompt_len": 60, "max_tokens": 4}
{"id": "3", "arrival": 900000000, "prompt_len": 60, "max_tokens": 4, "abort_at": 900000001}
"""


@pytest.mark.parametrize("policy", ["spyre", "vllm-v1"])
def test_idle_steps_before_a_far_arrival_are_numbered_and_not_taken(policy: str) -> None:
    Path("w.jsonl").write_text(GAP, encoding="utf-8")
    ran = lockstep("run", "w.jsonl", "--set", f"policy={policy}", "--trace", "t.jsonl")
    assert ran.code == 0
    assert "4: 3 finished, 1 aborted" in ran.out
    assert '"step":1000000000,' in Path("t.jsonl").read_text(encoding="utf-8")
    assert lockstep("replay", "t.jsonl").code == 0


# --- drivers --------------------------------------------------------------------------------------


def test_driver_that_writes_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MOST_ANSWER_BYTES", 2**20)
    Path("flood.py").write_text("while True: print('x' * 65_536, end='')", encoding="utf-8")
    ran = lockstep("conform", "flood.py", "--time", 1)
    assert ran.code == 2
    assert "driver's line: found 'over 1," in ran.err


@pytest.mark.thorough  # five seconds of waiting; another silent driver is in the fast tier
@pytest.mark.parametrize("says", ["", f"print({HELLO!r}, flush=True)"])
def test_driver_that_says_nothing_more_ends_the_campaign_with_its_time(
    says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "ANSWER_BEYOND_S", 0.5)
    Path("silent.py").write_text(f"{says}\nimport time\ntime.sleep(1000)\n", encoding="utf-8")
    ran = lockstep("conform", "silent.py", "--time", 2, "--start-time", 5)
    assert ran.code == 3
    assert ran.err.startswith("lockstep: incomplete: the driver did not answer within ")


# --- terminals and streams ------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [40, 80])
def test_names_numbers_and_paths_stay_whole_on_narrow_terminals(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common.out, "width", columns)
    out = "--out", "a-directory-with-a-name-that-is-longer-than-the-terminal"
    ran = lockstep("explore", "documented", "dialogue", "--max-states", 50, *out)
    assert f"  replay: lockstep replay {out[1]}/documented-spy-vol-1.jsonl\n" in ran.out
    row = next(line for line in ran.out.splitlines() if line.startswith("documented"))
    assert row.split()[1:4] == ["29", "50", "6"]


@pytest.mark.thorough
def test_ids_that_the_locale_cannot_write_are_shown_all_the_same() -> None:
    Path("w.jsonl").write_text('{"id": "é→", "prompt_len": 5, "max_tokens": 2}', encoding="utf-8")
    posix = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for line in ("run w.jsonl --trace t.jsonl", "replay t.jsonl --steps"):
        ran = in_a_process(line, **posix)
        assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.thorough
@pytest.mark.parametrize(("closed", "code"), [(">&-", 3), ("<&-", 0), ("2>&-", 0), ("| true", 0)])
def test_streams_that_are_closed_from_the_start(closed: str, code: int) -> None:
    assert in_a_process(f"rules SPY-VOL-1 --json r.json {closed}").returncode == code
    assert Path("r.json").stat().st_size
