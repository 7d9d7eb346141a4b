"""Our device accepts the recorded tensors of a release and refuses tampered ones."""

from collections.abc import Callable
from pathlib import Path

import pytest

from checks.harness.campaigns.recording import read_recording
from checks.harness.comparison import compare
from checks.harness.system import Json
from checks.policies.spyre.device import TensorDevice
from reference.core.block_pool import empty_pool
from spec.spyre.records import Step, context_of
from spec.spyre.state import State

POOL = empty_pool([])
RECORDED = Path(__file__).parents[3] / "recorded"


def refusals(scene: str, change: Callable[[list[Json]], None] | None = None) -> dict[int, str]:
    """Steps of a recorded scene whose tensors our device refuses, and for what."""
    recording = read_recording(RECORDED / f"sendnn-{scene}.jsonl")
    case, records = recording.case, list(recording.records)
    if change is not None:
        change(records)
    device = TensorDevice(context_of(case.config, case.requests))
    found = ((index, device.wrong(idle_step(), record)) for index, record in enumerate(records))
    return {index: wrong[0] for index, wrong in found if wrong is not None}


def idle_step() -> Step:
    """A step of which nothing is looked at: the tensors say all."""
    at_rest = State(POOL)
    return Step(index=0, time=0.0, kind="idle", before=at_rest, after=at_rest)


@pytest.mark.parametrize(
    "scene", ["interleaved", "tkv_jumps", "whole_chunk_cached", "pausing", "overtaken"]
)
def test_our_device_computes_from_the_releases_tensors_what_each_request_gets_alone(
    scene: str,
) -> None:
    recording = read_recording(RECORDED / f"sendnn-{scene}.jsonl")
    episode = compare(recording, recording.case, recording.terms)

    assert episode.finding is None
    assert episode.on_device > 0
    assert refusals(scene) == {}


def test_a_block_that_the_models_cache_does_not_have_is_refused() -> None:
    # The scheduler has 6 blocks; the model runner rounds their number, with padding, down to 6.
    assert refusals("two_pools") == {8: "device: no such block", 9: "device: no such block"}


def test_a_device_goes_on_from_a_saved_memory_which_stays_as_it_is() -> None:
    recording = read_recording(RECORDED / "sendnn-stale_block.jsonl")
    ctx, step = context_of(recording.case.config, recording.case.requests), idle_step()
    first, records = TensorDevice(ctx), list(recording.records)
    found = [first.wrong(step, record) for record in records[:8]]
    saved = first.saved()
    found += [first.wrong(step, record) for record in records[8:]]
    assert [index for index, wrong in enumerate(found) if wrong] == [10, 11]
    for _ in range(2):
        other = TensorDevice(ctx)
        other.restore(saved)
        assert [other.wrong(step, record) for record in records[8:]] == found[8:]


def test_after_an_abort_a_block_is_read_that_was_never_written() -> None:
    """What counting ahead comes to: the third prompt finds blocks that the second did not reach."""
    assert refusals("unwritten_block") == dict.fromkeys((4, 5), "device: read unwritten")


def test_such_a_block_may_hold_what_another_prompt_left_there() -> None:
    assert refusals("stale_block") == dict.fromkeys((10, 11), "device: read position")


def one_more(kind: str, tensor: str, *place: int, by: int = 1) -> Callable[[list[Json]], None]:
    """Another number in this place of a tensor, in the first step of the kind."""

    def change(records: list[Json]) -> None:
        values = next(record["tensors"] for record in records if record["kind"] == kind)[tensor]
        for index in place[:-1]:
            values = values[index]
        values[place[-1]] += by

    return change


TAMPERED = {
    "written elsewhere": (one_more("decode", "slot_mapping", 0), "device: write offset"),
    "another token": (one_more("decode", "token_ids", 0), "device: token"),
    "another block": (one_more("decode", "block_table", 0, -1), "device: write outside"),
    "padding that is not masked": (
        one_more("prefill", "left_padding", 0, by=-64),
        "device: padding blocks",
    ),
}


@pytest.mark.parametrize(("change", "constraint"), TAMPERED.values(), ids=TAMPERED)
def test_a_tensor_that_is_wrong_in_one_place_is_noticed(
    change: Callable[[list[Json]], None], constraint: str
) -> None:
    found = refusals("tkv_jumps", change)

    assert next(iter(found.values())) == constraint
