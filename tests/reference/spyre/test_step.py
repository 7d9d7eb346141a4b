"""The scheduler step by example, in the order of the text: padding, decode, priority, caching."""

from typing import Any

import pytest

from spec.core.errors import WorkloadError
from spec.core.records import Event
from spec.core.requests import Oversized
from tests.reference.scenes import arrived, steps_from, steps_to_the_end
from tests.reference.spyre.scenes import log, machine, tkvs
from tests.requests import request

LARGE: dict[str, Any] = {"block_size": 64, "chunk_size": 128, "max_model_len": 512}

# --- prefill padding ------------------------------------------------------------------------------


def test_prompt_of_302_tokens_is_prefilled_in_three_steps() -> None:
    """Block 64, chunk 128: a block of padding in front, 18 tokens of it behind."""
    scene = machine(request("a", 302, 3), **LARGE)

    steps = steps_to_the_end(scene, arrived(scene))

    chunks = [step.chunk for step in steps[:3] if step.chunk]
    assert [(chunk.left_padding, chunk.right_padding) for chunk in chunks] == [(64, 18)] * 3
    assert [(chunk.start, chunk.end) for chunk in chunks] == [(0, 64), (64, 192), (192, 302)]
    assert [chunk.block_table for chunk in chunks] == [(0, 1), (0, 1, 2, 3), (0, 1, 2, 3, 4, 5)]
    assert [chunk.writes for chunk in chunks] == [(0, 1), (2, 3), (4, 5)]
    assert [step.scheduled for step in steps] == [{"a": tokens} for tokens in (64, 128, 110, 1, 1)]
    assert [list(step.outputs) for step in steps] == [[], [], ["a"], ["a"], ["a"]]
    assert [step.tkv for step in steps] == [302, 302, 302, 303, 304]
    assert [step.volume for step in steps] == [step.tkv for step in steps]
    assert [step.finished for step in steps] == [(), (), (), (), ("a",)]


# --- decode: padding and tkv ----------------------------------------------------------------------


def test_two_requests_decode_under_one_width_and_jump_as_the_text_says() -> None:
    """Blocks of 4. B, padded, crosses a block; then A, the longest, does; then A leaves."""
    scene = machine(request("a", 9, 6), request("b", 3, 9))

    steps = steps_to_the_end(scene, arrived(scene))

    assert log(steps) == ["a 1/2", "a 2/2", "a", "b 1/1", *["b+a"] * 4, *["b"] * 4]
    assert [tkvs(step) for step in steps[4:]] == [
        {"a": 11, "b": 12},  # B is padded by two blocks
        {"a": 12, "b": 9},  # B crosses into its second block and gives up one of padding
        {"a": 13, "b": 14},  # A crosses into its fourth block: B gets one more of padding
        {"a": 14, "b": 15},  # nothing happens; then A has its six tokens
        {"b": 8},  # no longer row is there: all padding of B goes
        {"b": 9},
        {"b": 10},
        {"b": 11},
    ]
    assert [step.volume for step in steps[4:]] == [24, 24, 28, 30, 8, 9, 10, 11]
    all_jumps = [(step.index, jump) for step in steps for jump in step.happened("jump_tkv")]
    jumps = {index: (jump.id, jump.before, jump.after) for index, jump in all_jumps}
    assert len(all_jumps) == len(jumps)
    assert jumps == {4: ("b", 3, 12), 5: ("b", 12, 9), 6: ("b", 9, 14), 8: ("b", 15, 8)}


def test_longer_request_that_joins_pads_those_that_were_there() -> None:
    scene = machine(request("a", 2, 9), request("b", 9, 4))

    steps = steps_to_the_end(scene, arrived(scene))

    assert log(steps[:6]) == ["a 1/1", "a", "b 1/2", "a", "b 2/2", "b+a"]
    assert [tkvs(step) for step in (steps[3], steps[5])] == [{"a": 4}, {"b": 10, "a": 9}]
    assert steps[5].happened("jump_tkv") == [Event("jump_tkv", "a", "SPY-TKV-7", 4, 9)]


# --- a request that is never served ---------------------------------------------------------------


def test_request_that_reaches_the_limit_alone_is_paused_and_stops_a_prefill_behind_it() -> None:
    with pytest.raises(WorkloadError, match="found 16; allowed: at most max_batch_tkv_limit"):
        machine(request("a", 7, 10), max_batch_tkv_limit=8)
    sizes: dict[str, Any] = {"max_batch_tkv_limit": 8, "chunk_size": 4, "pausing": True}
    scene = machine(request("a", 7, 10), request("b", 8, 1), oversized=Oversized.QUEUED, **sizes)

    alone = steps_from(scene, scene.arrive(scene.initial(), "a"), 5)
    both = steps_from(scene, scene.arrive(alone[-1].after, "b"), 3)

    assert log(alone) == ["a 1/2", "a 2/2", "a", "idle", "idle"]
    assert alone[3].after == alone[4].after
    assert log(both) == ["b 1/2", "idle", "idle"]
    assert [step.refusal for step in both] == [None, "SPY-PAU-4", "SPY-PAU-4"]
