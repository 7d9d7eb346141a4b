"""The chapters in one screen: their tables are what the reference does with three requests."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from checks.chapters import CHAPTERS, with_table
from tests.checks.command import lockstep
from tests.checks.prose import ids_in

EXAMPLES = Path(__file__).parents[3] / "examples"
COLUMNS = ("step", "kind", "tokens computed", "running after it", "waiting", "free blocks", "event")
MOST_LINES, MOST_CHARACTERS = 40, 125  # of a screen
TOLD = {"preempt": "preempted", "swap_out": "swapped out", "swap_in": "swapped in"} | {
    "prefix_hit": "cached prefix found",
    "finish": "ended",
}


def steps_of(policy: str, directory: Path) -> list[Any]:
    """The steps of the trace that the reference of the policy leaves."""
    trace = directory / "trace.jsonl"
    files = (str(EXAMPLES / "three.jsonl"), "--config", str(EXAMPLES / "three.toml"))
    options = ("--set", f"policy={policy}", "--using", "reference", "--trace", str(trace))
    assert lockstep("run", *files, *options).code == 0
    lines = map(json.loads, trace.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if "step" in line]


def rows(steps: list[Any]) -> Iterator[tuple[object, ...]]:
    for step in steps:
        computed = " ".join(f"{id_}:{count}" for id_, count in step["scheduled"].items())
        events = [event for event in step["events"] if event["transition"] in TOLD]
        happened = "; ".join(f"{event['id']} {TOLD[event['transition']]}" for event in events)
        queues = (" ".join(step["running"]) or "-", " ".join(step["waiting"]) or "-")
        free = step["blocks"]["free"]
        yield (step["step"], step["kind"], computed, *queues, free, happened or "-")


@pytest.mark.parametrize("policy", ["vllm-v1", "vllm-v0", "nano-vllm"])
def test_the_table_of_a_chapter_is_what_the_reference_does(policy: str, tmp_path: Path) -> None:
    path = CHAPTERS / f"{policy.replace('-', '_')}.md"
    chapter = path.read_text(encoding="utf-8")

    expected = with_table(chapter, "three requests", COLUMNS, rows(steps_of(policy, tmp_path)))
    assert expected == chapter
    assert "<!-- three requests -->" in chapter


@pytest.mark.parametrize("policy", ["vllm-v1", "vllm-v0", "nano-vllm"])
def test_a_chapter_begins_with_one_screen_that_names_no_rule(policy: str) -> None:
    text = (CHAPTERS / f"{policy.replace('-', '_')}.md").read_text(encoding="utf-8")
    (screen,) = re.findall(r"^## In one screen\n(.*?)^## ", text, flags=re.DOTALL | re.MULTILINE)
    lines = screen.splitlines()

    assert text.index("## In one screen") == text.index("## ")
    assert 15 < len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= MOST_CHARACTERS
    assert ids_in(screen) == []
