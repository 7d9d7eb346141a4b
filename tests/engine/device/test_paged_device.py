"""The paged device by example: mixed batches, shared blocks, drafts, loads."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from engine.core.faults import Constraint
from engine.paged.device import PagedDevice
from engine.paged.inputs import PagedInput, Pairs, Transfers
from spec.core.requests import attended_sum, sampled_token
from tests.engine.device.batches import PagedRow, paged_input
from tests.engine.device.paged_refused_steps import BATCH, BEFORE, CHUNK, SHAPE
from tests.refusals import device_refuses


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


def test_row_reads_what_another_computes_in_the_same_step() -> None:
    """Both prompts begin with 1 2 3 4: the second finds block 1, which the first fills just now."""
    both = paged_input(PagedRow([1, 2, 3, 4, 5], 0, [1, 2]), PagedRow([6], 4, [1, 3]))

    tokens = PagedDevice(SHAPE).compute(both).tolist()

    assert tokens == [alone(1, 2, 3, 4, 5), alone(1, 2, 3, 4, 6)]


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


def test_what_stands_behind_the_newest_token_is_gone() -> None:
    """9 was a draft behind 8; with 5 for 8 its slot is there, and may not be read."""
    device = device_with(row([1, 2], 0, [1, 2]), DRAFTS, row([5], 4, [1, 2]))

    with device_refuses(Constraint.WRITE_GAP, token=0, block=2, slot=2, written=1):
        device.compute(row([6], 6, [1, 2]))


# --- transfers: 1 2 3 4 5 in blocks 1 and 2 -------------------------------------------------------

PROMPT = row([1, 2, 3, 4, 5], 0, [1, 2])
OTHER = row([9, 8, 7, 6, 5], 0, [1, 2])


def swapped(out: Pairs, back: Pairs) -> int:
    """What the prompt samples next, in blocks 5 and 6, when another used its blocks meanwhile."""
    device = device_with(PROMPT)
    device.transfer(Transfers.of(swaps_out=out))
    device.compute(OTHER)
    device.transfer(Transfers.of(swaps_in=back))
    return int(device.compute(row([11], 5, [5, 6]))[0])


def forked(copies: Pairs) -> list[int]:
    """What two sequences sample next that share the prompt; the second is to have block 3."""
    device = device_with(PROMPT)
    device.transfer(Transfers.of(copies=copies))
    second = [1, 3 if copies else 2]
    both = paged_input(PagedRow([11], 5, [1, 2]), PagedRow([12], 5, second))
    return list(device.compute(both).tolist())


def test_swapped_blocks_come_back_as_they_were() -> None:
    out, back = [(1, 3), (2, 1)], [(3, 5), (1, 6)]

    assert swapped(out, back) == alone(1, 2, 3, 4, 5, 11)


@pytest.mark.parametrize(
    ("out", "back", "constraint"),
    [
        pytest.param([(2, 1)], [(3, 5), (1, 6)], Constraint.SWAP_SOURCE, id="a swap-out lost"),
        pytest.param(
            [(1, 3), (2, 1)], [(1, 6)], Constraint.READ_UNWRITTEN, id="a swap-in of the first lost"
        ),
        pytest.param(
            [(2, 3), (1, 1)], [(3, 5), (1, 6)], Constraint.REWRITE, id="swapped out exchanged"
        ),
    ],
)
def test_wrong_swap_is_refused(out: Pairs, back: Pairs, constraint: Constraint) -> None:
    with device_refuses(constraint):
        swapped(out, back)


def test_forked_sequences_go_on_in_blocks_of_their_own() -> None:
    assert forked([(2, 3)]) == [alone(1, 2, 3, 4, 5, 11), alone(1, 2, 3, 4, 5, 12)]


@pytest.mark.parametrize(
    ("copies", "constraint"),
    [
        pytest.param([], Constraint.WRITE_HELD, id="no copy-on-write"),
        pytest.param([(3, 2)], Constraint.WRITE_GAP, id="the wrong way"),
    ],
)
def test_wrong_copy_is_refused(copies: Pairs, constraint: Constraint) -> None:
    with device_refuses(constraint):
        forked(copies)


def test_blocks_are_copied_after_swap_in_and_over_blocks_swapped_away() -> None:
    device = device_with(OTHER)
    device.transfer(Transfers.of(swaps_out=[(1, 1)]))
    device.compute(PROMPT)

    device.transfer(Transfers.of(swaps_out=[(1, 2)], swaps_in=[(1, 5)], copies=[(5, 1)]))
    device.transfer(Transfers.of(swaps_in=[(2, 6)]))

    assert device.compute(row([5], 4, [1, 7])).tolist() == [alone(9, 8, 7, 6, 5)]
    assert device.compute(row([5], 4, [6, 8])).tolist() == [alone(1, 2, 3, 4, 5)]


def test_block_that_holds_nothing_holds_nothing_when_it_comes_back() -> None:
    """Block 3 is there for tokens to come; it is swapped with the others and then written."""
    device = device_with(PROMPT)
    device.transfer(Transfers.of(swaps_out=[(1, 1), (2, 2), (3, 3)]))
    device.transfer(Transfers.of(swaps_in=[(1, 6), (2, 7), (3, 8)]))

    tokens = device.compute(row([6, 7, 8, 9], 5, [6, 7, 8])).tolist()

    assert tokens == [alone(1, 2, 3, 4, 5, 6, 7, 8, 9)]


# --- blocks that are shared before they are written -----------------------------------------------


def test_rows_with_equal_tokens_may_write_one_block() -> None:
    """Both prompts begin with 1 2 3 4, which neither finds in the cache."""
    both = paged_input(PagedRow([1, 2, 3, 4, 5], 0, [1, 2]), PagedRow([1, 2, 3, 4, 6], 0, [1, 3]))

    tokens = device_with(shares_unwritten=True).compute(both).tolist()

    assert tokens == [alone(1, 2, 3, 4, 5), alone(1, 2, 3, 4, 6)]


def test_row_may_write_behind_what_another_writes_to_their_block_in_the_same_step() -> None:
    """The second finds all of 1 2 3 4 cached, and computes its last token in spite of that."""
    device = device_with(row([1, 2], 0, [1]), shares_unwritten=True)
    both = paged_input(PagedRow([4], 3, [1]), PagedRow([3, 4, 5], 2, [1, 2]))

    assert device.compute(both).tolist() == [alone(1, 2, 3, 4), alone(1, 2, 3, 4, 5)]


@pytest.mark.parametrize(
    ("first", "second", "constraint"),
    [
        pytest.param([1, 2, 3, 4], [1, 2, 3, 5], Constraint.WRITE_HELD, id="other tokens"),
        pytest.param([1, 2, 3, 4, 5], [5], Constraint.READ_POSITION, id="another position"),
    ],
)
def test_rows_with_other_tokens_may_not_write_one_block(
    first: list[int], second: list[int], constraint: Constraint
) -> None:
    blocks = [1, 2][: -(-len(first) // 4)]
    both = paged_input(PagedRow(first, 0, blocks), PagedRow(second, 0, blocks[-1:]))

    with device_refuses(constraint):
        device_with(shares_unwritten=True).compute(both)


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

    with device_refuses(Constraint.READ_CONTENT, row=0, column=1, block=5, position=4):
        device.compute(row([9], 6, [1, 5]))
