"""Everything that the device refuses: the smallest steps that break it, and nothing else."""

from functools import partial

import numpy as np
import pytest
from attrs import evolve

from engine.core.faults import Constraint, ConstraintError
from engine.core.tensors import Tensor
from engine.spyre.device import DecodeInput, PrefillInput, SpyreDevice, checks
from engine.spyre.device.checks import check_decode
from engine.spyre.device.device import KVCache
from tests.engine.device.batches import Row, config, prefill_input
from tests.engine.device.paged_refused_steps import PAGED_CASES
from tests.engine.device.refused_steps import (
    BATCH,
    CASES,
    CHUNK,
    FIRST,
    SECOND,
    THIRD,
    Case,
    assert_refused,
    parameters,
)
from tests.refusals import device_refuses, refusal


def prepared(case: Case) -> SpyreDevice:
    """The device with everything in its cache that the steps above begin with."""
    device = SpyreDevice(config(**case.config))
    for row, chunk in ((FIRST, 0), (SECOND, 0), (THIRD, 0)):
        device.prefill(prefill_input(config(), row, chunk))
    for step in case.before:
        done(device, step)
    return device


def done(device: SpyreDevice, step: PrefillInput | DecodeInput) -> list[int]:
    tokens = device.prefill(step) if isinstance(step, PrefillInput) else device.decode(step)
    return [int(token) for token in tokens]


def test_the_steps_that_the_cases_change_are_fine() -> None:
    device = prepared(Case(BATCH, ""))

    assert len(done(device, BATCH)) == 2
    assert len(done(device, CHUNK)) == 1


@pytest.mark.parametrize(("constraint", "case"), parameters(CASES))
def test_step_is_refused(constraint: Constraint, case: Case) -> None:
    device = prepared(case)

    assert_refused(device, partial(done, device), case, constraint)


@pytest.mark.parametrize(
    ("constraint", "case"),
    [case for case in parameters(CASES) if isinstance(case.values[1].step, DecodeInput)],
)
def test_step_is_refused_even_if_its_table_was_already_checked(
    constraint: Constraint, case: Case
) -> None:
    device, step = prepared(case), case.step
    before = evolve(BATCH, block_table=read_only(BATCH.block_table))
    device._checked = check_decode(config(), before)
    if step.block_table is BATCH.block_table:
        step = evolve(step, block_table=before.block_table)

    assert device._checked is not None
    assert_refused(device, partial(done, device), evolve(case, step=step), constraint)


def read_only(table: Tensor) -> Tensor:
    """A copy that cannot be written to."""
    copy = table.copy()
    copy.setflags(write=False)
    return copy


@pytest.mark.parametrize("check", ["_check_row_padding", "_check_table", "_check_written_once"])
def test_table_that_stands_there_again_is_not_checked_again(
    check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = evolve(BATCH, block_table=read_only(BATCH.block_table))
    last = check_decode(config(), given)
    monkeypatch.delattr(checks, check)

    assert check_decode(config(), evolve(given), last) is last


@pytest.mark.parametrize("of", ["itself", "what it is a view of"])
def test_table_that_may_have_changed_is_checked_again(of: str) -> None:
    table = BATCH.block_table.copy()
    given = evolve(BATCH, block_table=table)
    if of != "itself":
        given = evolve(BATCH, block_table=table[:])
        given.block_table.setflags(write=False)
    last = check_decode(config(), given)
    table[0, 0] = 41

    with device_refuses(Constraint.BLOCK_ID, row=0, column=0, block=41, last_block=40):
        check_decode(config(), given, last)


def test_full_blocks_of_a_table_that_stands_there_again_are_not_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = evolve(BATCH, block_table=read_only(BATCH.block_table))
    device = prepared(Case(given, ""))
    tokens = done(device, given)
    monkeypatch.delattr(KVCache, "whole_blocks")

    assert done(device, given) == tokens


def test_full_blocks_of_the_same_table_are_read_again_once_a_chunk_was_written() -> None:
    given = evolve(BATCH, block_table=read_only(BATCH.block_table))
    device = prepared(Case(given, ""))
    done(device, given)
    done(device, prefill_input(config(), Row.of([60, 61, 62, 63], FIRST.blocks[:1]), 0))

    with device_refuses(Constraint.READ_CONTENT, row=0, block=FIRST.blocks[1], position=4):
        done(device, given)


def test_excess_padding_of_one_token_is_refused_where_blocks_are_tokens() -> None:
    shape = config(block_size=1, chunk_size=1)
    given = DecodeInput(
        token_ids=np.array([5]),
        positions=np.array([0]),
        slot_mapping=np.array([1]),
        block_table=np.array([[0, 1]]),
        left_padding=np.array([1]),
        tkv=np.array([2]),
    )

    with device_refuses(Constraint.EXCESS_PADDING, least_left_padding=1):
        SpyreDevice(shape).decode(given)


def test_refusal_says_what_was_broken_where_and_by_how_much() -> None:
    device = SpyreDevice(config(max_batch_tkv_limit=15))

    assert refusal(ConstraintError, device.decode, BATCH) == (
        "the device refuses: volume: Batch size times the largest tkv does not exceed the limit. "
        "Found: rows 2, tkv 8, limit 15"
    )


def test_every_constraint_has_its_case() -> None:
    assert CASES.keys() | PAGED_CASES.keys() == set(Constraint)
