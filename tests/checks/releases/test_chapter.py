"""The chapter on drivers agrees with the code."""

from pathlib import Path

import pytest

import spec
from checks.harness.case import Case
from checks.harness.difference import KnownDifference
from checks.harness.driver.protocol import FORMAT, VERSION, start_line
from checks.harness.policy import evidence_of
from checks.harness.system import Action
from checks.registry import POLICIES
from spec.spyre.config import SpyreConfig
from tests.recorded.scenes import FILE_NAMES, SCENES, asks

CHAPTER = (Path(spec.__file__).parent / "chapters" / "drivers.md").read_text(encoding="utf-8")


KNOWN = [row for policy in POLICIES for row in evidence_of(policy).known_differences]
NAMES = {name for policy in POLICIES for name in evidence_of(policy).adapter.fields.names}


@pytest.mark.parametrize("row", KNOWN, ids=lambda row: row.id)
def test_the_chapter_lists_every_known_difference(row: KnownDifference) -> None:
    recording = next(
        FILE_NAMES[name].removesuffix(".jsonl")
        for name, scene in SCENES.items()
        if scene.known == row.id
    )
    assert f"| {row.id} | {row.versions} | {row.says} | `{recording}` |" in CHAPTER


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_chapter_names_every_optional_field(name: str) -> None:
    assert f"`{name}`" in CHAPTER


def test_the_chapter_names_every_field_of_our_lines() -> None:
    start = start_line(Case(SpyreConfig(), (asks("a", 1, 1),)), tensors=True)
    action = Action(("a",), ("b",), ("c",), ("d",), {"e": 1}, {"f": 1}, ("g",), ("h",)).as_json()

    for name in (*start, *start["requests"][0], *action):
        assert f'"{name}"' in CHAPTER or f"`{name}`" in CHAPTER, name
    assert f'"format": "{FORMAT}", "version": {VERSION}' in CHAPTER
