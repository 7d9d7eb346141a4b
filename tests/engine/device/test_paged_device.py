"""The paged device by example: mixed batches, shared blocks, drafts, loads."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from engine.core.faults import Constraint, ConstraintError
from engine.paged.device import PagedDevice
from engine.paged.inputs import PagedInput
from spec.core.requests import attended_sum, sampled_token
from tests.engine.device.batches import PagedRow, paged_input
from tests.engine.device.paged_refused_steps import BATCH, BEFORE, CHUNK, SHAPE


def alone(*tokens: int) -> int:
    """What the model samples behind these tokens, whatever else is in the batch."""
    return sampled_token(attended_sum(tokens))


def device_with(*steps: PagedInput, **shape: Any) -> PagedDevice:
    device = PagedDevice(evolve(SHAPE, **shape))
    for step in steps:
        device.compute(step)
    return device


def row(tokens: Sequence[int], cached: int, blocks: Sequence[int], samples: int = 1) -> PagedInput:
    """A step of one row."""
    return paged_input(PagedRow(tokens, cached, blocks, samples))


def test_decodes_and_the_rest_of_a_prompt_in_one_batch() -> None:
    device = PagedDevice(SHAPE)

    assert device.compute(BEFORE).tolist() == [alone(10, 11, 12, 13, 14, 15), alone(20, 21, 22)]
    assert device.compute(CHUNK).tolist() == []
    assert device.compute(BATCH).tolist() == [
        alone(10, 11, 12, 13, 14, 15, 16),
        alone(20, 21, 22, 23),
        alone(30, 31, 32, 33, 34, 35, 36, 37, 38, 39),
    ]


def test_step_can_be_run_again_with_the_same_tensors() -> None:
    device = device_with(BEFORE, CHUNK)

    assert device.compute(BATCH).tolist() == device.compute(BATCH).tolist()


def test_row_reads_what_another_computes_in_the_same_step() -> None:
    """Both prompts begin with 1 2 3 4: the second finds block 1, which the first fills just now."""
    both = paged_input(PagedRow([1, 2, 3, 4, 5], 0, [1, 2]), PagedRow([6], 4, [1, 3]))

    tokens = PagedDevice(SHAPE).compute(both).tolist()

    assert tokens == [alone(1, 2, 3, 4, 5), alone(1, 2, 3, 4, 6)]


def test_pool_of_nano_vllm_begins_with_block_0() -> None:
    device = PagedDevice(evolve(SHAPE, first_block=0))

    assert device.compute(row([1, 2, 3], 0, [0])).tolist() == [alone(1, 2, 3)]


# --- drafts: 7 8 9 are proposed behind 1 2 3 -----------------------------------------------------

DRAFTS = row([3, 7, 8, 9], cached=2, blocks=[1, 2], samples=4)


def test_one_token_is_sampled_behind_each_draft() -> None:
    tokens = device_with(row([1, 2], 0, [1, 2])).compute(DRAFTS).tolist()

    assert tokens == [
        alone(1, 2, 3),
        alone(1, 2, 3, 7),
        alone(1, 2, 3, 7, 8),
        alone(1, 2, 3, 7, 8, 9),
    ]


def test_rejected_drafts_are_written_over_and_leave_no_trace() -> None:
    """7 stays, 5 comes in the place of 8, which began a block; 9 is never read again."""
    device = device_with(row([1, 2], 0, [1, 2]), DRAFTS, num_speculative_tokens=3)

    assert device.compute(row([5, 6], 4, [1, 2])).tolist() == [alone(1, 2, 3, 7, 5, 6)]


def test_draft_inside_a_block_is_written_over() -> None:
    device = device_with(row([1, 2], 0, [1, 2]), DRAFTS, num_speculative_tokens=3)

    assert device.compute(row([5], 3, [1, 2])).tolist() == [alone(1, 2, 3, 5)]


def test_what_stands_behind_the_newest_token_is_gone() -> None:
    """9 was a draft behind 8; with 5 for 8 its slot is there, and may not be read."""
    device = device_with(row([1, 2], 0, [1, 2]), DRAFTS, row([5], 4, [1, 2]))

    with pytest.raises(ConstraintError) as refused:
        device.compute(row([6], 6, [1, 2]))

    assert refused.value.constraint == Constraint.WRITE_GAP
    assert refused.value.numbers == {"token": 0, "block": 2, "slot": 2, "written": 1}


# --- loads ----------------------------------------------------------------------------------------


def test_loaded_blocks_are_read_as_if_they_had_been_computed_here() -> None:
    """Elsewhere 1 to 6 were computed; the first block was cached here, the second is brought."""
    elsewhere = device_with(row([1, 2, 3, 4, 5, 6], 0, [7, 8]))
    device = device_with(row([1, 2, 3, 4], 0, [1]))

    device.load(np.array([5]), elsewhere, np.array([8]))

    assert device.compute(row([9], 6, [1, 5])).tolist() == [alone(1, 2, 3, 4, 5, 6, 9)]


def test_loaded_block_is_refused_behind_other_tokens() -> None:
    elsewhere = device_with(row([1, 2, 3, 4, 5, 6], 0, [7, 8]))
    device = device_with(row([4, 3, 2, 1], 0, [1]))
    device.load(np.array([5]), elsewhere, np.array([8]))

    with pytest.raises(ConstraintError) as refused:
        device.compute(row([9], 6, [1, 5]))

    assert refused.value.constraint == Constraint.READ_CONTENT
    assert refused.value.numbers == {"row": 0, "column": 1, "block": 5, "position": 4}
