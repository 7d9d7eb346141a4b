"""Logs that releases write: equal as they are, and found with a defect put back.

The table of the chapter on logs is what is found. Skipped where a release is not installed.
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

from checks.chapters import chapter_path
from checks.cli.check import in_order, watched_log
from checks.harness.driver.protocol import DriverError
from checks.harness.logs.reading import LogReader
from checks.harness.logs.watching import Watch
from checks.releases.environments import command_of
from tests.checks.drivers.put_back.trying import MODULES, defect_table

HERE = Path(__file__).parent
RELEASES = {"sendnn": "sendnn-inference 2.6.3", "vllm-v1": "vLLM 0.28.0"}
FULL_NAMES = {"vllm-v1": "vllm-v1==0.28.0"}  # whose engine core the stand-in serves
STEPS, CLIENTS = 10_000, 4  # of a server as it is
DEFECT_STEPS = 400
LEAST_FOUND = 12
NOT_FOUND = "not found"
ROW = re.compile(
    r"^\| (?P<release>[^|]+) \| (?P<says>[^|]+) \| (?P<named>[^|]+) \| (?P<cut>\w+) \|$"
)


def table(driver: str) -> dict[str, tuple[str, str]]:
    """Of each defect in the chapter: what is named first, and whether a case is cut."""
    names = {defect["says"]: name for name, defect in defect_table(driver).items()}
    lines = chapter_path("logs").read_text(encoding="utf-8").splitlines()
    rows = [match for line in lines if (match := ROW.match(line))]
    return {
        names[row["says"]]: (row["named"].strip("`"), row["cut"])
        for row in rows
        if row["release"] == RELEASES[driver]
    }


def serve(module: str, steps: int, clients: int, logs: dict[str, Path]) -> str:
    """Let the release serve and record; what it prints of each log."""
    driver = next((name for name, known in MODULES.items() if known == module), "vllm-v1")
    try:
        python, _ = command_of(FULL_NAMES.get(driver, driver))
    except DriverError:
        pytest.skip(f"not installed: {driver}")
    chosen = [f"{defect}={path}" for defect, path in logs.items()]
    command = [python, str(HERE / "server.py"), module, str(steps), str(clients), *chosen]
    plain = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    ran = subprocess.run(command, capture_output=True, text=True, env=plain, check=False)
    assert ran.returncode == 0, ran.stderr[-2_000:]
    return ran.stderr


def found(log: Path, directory: Path) -> tuple[str, str]:
    """The first finding of a log by its rule or field, and whether a case was cut of it."""
    watch, cuts = watched_log(LogReader(log), log, directory)
    first = next(iter(in_order(watch)), None)
    if first is None:
        return NOT_FOUND, "no"
    return first.cause, "yes" if cuts[first.name] else "no"


def watched(log: Path) -> Watch:
    return watched_log(LogReader(log), log, log.parent)[0]


def test_the_table_has_enough_defects_of_each_release() -> None:
    tables = [table(driver) for driver in RELEASES]

    assert all(len(rows) >= LEAST_FOUND // 2 for rows in tables)
    seen = [named for rows in tables for named, _ in rows.values()]
    assert sum(named != NOT_FOUND for named in seen) >= LEAST_FOUND


@pytest.mark.thorough
@pytest.mark.parametrize("module", MODULES.values())
def test_every_step_of_a_server_with_clients_in_threads_is_equal(
    module: str, tmp_path: Path
) -> None:
    log = tmp_path / "log.jsonl"
    serve(module, STEPS, CLIENTS, {"none": log})
    seen = watched(log).seen

    assert (seen.findings, seen.known, seen.not_compared, seen.stopped) == ({}, None, "", "")
    assert seen.compared == seen.steps == STEPS


@pytest.mark.thorough
def test_no_rule_is_broken_by_asynchronous_scheduling(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    serve("async", STEPS, CLIENTS, {"none": log})
    watch = watched(log)

    assert (watch.seen.findings, watch.seen.stopped, watch.seen.compared) == ({}, "", 0)
    assert watch.seen.steps > 0.9 * STEPS
    assert watch.judged_rules


@pytest.mark.thorough
@pytest.mark.parametrize("driver", RELEASES)
def test_a_defect_put_back_is_found_as_the_chapter_says(driver: str, tmp_path: Path) -> None:
    due = table(driver)
    logs = {name: tmp_path / f"{name}.jsonl" for name in ("none", *due)}
    serve(MODULES[driver], DEFECT_STEPS, 0, logs)
    met = {name: found(log, tmp_path / "findings") for name, log in logs.items()}

    assert met.pop("none") == (NOT_FOUND, "no")
    assert met == due
