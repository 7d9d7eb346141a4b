"""Records of vLLM V0: a fault in a record is found in its field."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import TypeAlias

import pytest
from attrs import evolve

import spec
import tests.recorded
from checks.harness.campaigns.recording import Recording, read_recording
from checks.harness.comparison import compare
from checks.harness.finding import Episode
from checks.harness.system import Json
from tests.recorded.scenes import FILE_NAMES, SCENES

RECORDED = Path(next(iter(tests.recorded.__path__)))
SCENES_OF_V0 = [name for name, scene in SCENES.items() if scene.driver == "vllm-v0"]
Records: TypeAlias = list[Json]
Change: TypeAlias = Callable[[Records], object]


def recorded(scene: str) -> Recording:
    return read_recording(RECORDED / FILE_NAMES[scene])


def again(scene: str, change: Change) -> Episode:
    recording = recorded(scene)
    records = deepcopy([*recording.records])
    change(records)
    changed = evolve(recording, records=records)
    return compare(changed, changed.case, changed.terms)


def row(record: Json, request_id: str) -> Json:
    """The row of a request, in a record or in what was planned."""
    return next(row for row in record["rows"] if row["id"] == request_id)


SWAPPED, FORKED, CACHED = "swapped_and_aborted", "forked_copied_and_swapped", "chunks_and_a_prefix"
FAULTS: dict[str, tuple[str, Change, str]] = {
    "a free block is lost": (
        *(SWAPPED, lambda own: own[1]["blocks"]["free_list"].pop()),
        "after.pool.free",
    ),
    "a block of the CPU is still held": (
        *(SWAPPED, lambda own: own[-1]["cpu_blocks"]["references"].update({"0": 1})),
        "after.cpu.references",
    ),
    "a block of another": (
        *(SWAPPED, lambda own: row(own[0], "b")["sequences"][0].update(blocks=[0])),
        "after.running.sequences",
    ),
    "another token": (SWAPPED, lambda own: own[0]["outputs"].update(a=[1]), "outputs"),
    "an end too many": (SWAPPED, lambda own: own[-1]["finished"].append("a"), "finished"),
    "more tokens": (SWAPPED, lambda own: own[0]["scheduled"].update(a=104), "scheduled"),
    "nothing happens": (
        *(SWAPPED, lambda own: own[1].update(scheduled={}, swapped_out=[])),
        "scheduled",
    ),
    "a victim of priority": (
        *("held_back_and_urgent", lambda own: own[-1].update(by_priority=["a"])),
        "by_priority",
    ),
    "a copy to another block": (FORKED, lambda own: own[1].update(copies=[]), "copies"),
    "a swap of another block": (
        *(FORKED, lambda own: next(row for row in own if row["swaps_out"])["swaps_out"].pop()),
        "swaps_out",
    ),
    "a sibling's token": (FORKED, lambda own: own[0]["sampled"].update({"b/1": [3]}), "sampled"),
    "a block counts as computed": (
        *(CACHED, lambda own: own[0]["blocks"]["computed"].pop()),
        "after.computed",
    ),
    "a block is found no more": (
        *(CACHED, lambda own: own[0]["blocks"]["cached"].pop()),
        "after.pool.keys",
    ),
    "a use that is forgotten": (
        *(CACHED, lambda own: row(own[0], "a").update(accessed=0)),
        "after.running.mark",
    ),
    "cached tokens that are counted": (
        *(CACHED, lambda own: own[1]["budget"]["cached"].update(a=4)),
        "budget.cached",
    ),
    "no lookahead": (
        "several_steps",
        lambda own: own[2].update(lookahead_slots=0),
        "lookahead_slots",
    ),
    "free blocks counted wrong": (
        *(SWAPPED, lambda own: own[0]["cpu_blocks"].update(free=3)),
        "cpu_blocks.free",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_where_it_is(fault: str) -> None:
    scene, change, where = FAULTS[fault]

    finding = again(scene, change).finding

    assert finding is not None
    assert finding.cause == where


def fields_of(record: Json) -> set[str]:
    """Names of a record's fields, and of those of its rows, sequences and pools."""
    rows = [holder for row in record["rows"] for holder in (row, *row["sequences"])]
    return {name for mapping in (record, record["blocks"], *rows) for name in mapping}


def test_the_chapter_names_every_field() -> None:
    chapter = (Path(spec.__file__).parent / "chapters" / "drivers.md").read_text(encoding="utf-8")
    records = [record for scene in SCENES_OF_V0 for record in recorded(scene).records]
    names = set().union(*map(fields_of, records))

    assert len(names) > 30
    assert [
        name for name in sorted(names) if f"`{name}`" not in chapter and f'"{name}"' not in chapter
    ] == []
