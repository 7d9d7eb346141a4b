"""The page on logs: its commands run on a log with a planted defect, and print what it shows."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checks.chapters import chapter_path
from lockstep import api
from tests.checks.command import lockstep
from tests.checks.harness.driver.faithful import at
from tests.checks.harness.logs.test_logs import V1, one_token_more
from tests.checks.harness.logs.written import DECISIONS, Json, log_lines, write_log
from tests.checks.policies.vllm_v1.driver import driver

MOST_LINES = 66  # of a page
BEGAN = 1_796_958_720.0  # 2026-12-11 03:12 UTC


def first_page() -> str:
    return chapter_path("logs").read_text(encoding="utf-8").split("\n## ")[0]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", first_page(), re.DOTALL)


def timed(lines: Iterator[Json]) -> Iterator[Json]:
    steps = 0
    for line in lines:
        if "step" in line:
            line["step"]["at"] = BEGAN + steps
            steps += 1
        yield line


def shown(text: str) -> list[str]:
    """The lines, without the digest in the name of a finding's file: it is of the configuration."""
    named = re.sub(r"-[0-9a-f]{8}\.jsonl", "-….jsonl", text)
    return [line.rstrip() for line in named.splitlines() if line.strip() != "…"]


def finding() -> str:
    """The file of the only finding."""
    (path,) = Path("findings").glob("*.jsonl")
    return str(path)


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the commands of the page print, each of which exits with 1."""
    monkeypatch.chdir(tmp_path)
    write_log(Path("log.jsonl"), timed(log_lines(V1, DECISIONS, one_token_more)))
    check, again = (command.split()[1:] for command in blocks("sh"))
    ran = [lockstep(*check)]
    ran.append(lockstep(*(finding() if "findings/" in word else word for word in again)))
    assert [(run.code, run.err) for run in ran] == [(1, "")] * 2
    return [run.out for run in ran]


def test_it_is_one_page() -> None:
    assert len(first_page().splitlines()) <= MOST_LINES


def test_the_commands_print_what_the_page_shows(printed: list[str]) -> None:
    _, answer = blocks("text")
    check, again = (shown(text) for text in printed)

    assert [line for line in shown(answer) if line not in check] == []
    assert again[0] == shown(answer)[0]
    assert again[-1] == "as recorded"


@pytest.mark.usefixtures("printed")
def test_the_red_test_is_red_until_the_scheduler_is_mended() -> None:
    (source,) = blocks("python")

    def replayed(**faults: Any) -> api.Judged:
        judged: list[api.Judged] = []

        def replay(_file: str, _driver: str) -> None:
            judged.append(api.replay(finding(), driver(**faults)))

        made: dict[str, Callable[[Any], None]] = {}
        exec(source, made)
        made["test_scheduler"](SimpleNamespace(replay=replay))
        return judged[0]

    red = replayed(fault=at(3, lambda record: record["scheduled"].update(a=2)))
    assert not red.holds
    assert "  differs in step 3:" in red.report
    assert replayed().holds
