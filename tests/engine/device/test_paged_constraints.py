"""Everything that the paged device refuses: the smallest steps that break it, and nothing else."""

from functools import partial
from typing import Any

import pytest
from attrs import evolve

from engine.core.faults import Constraint, ConstraintError
from engine.paged.device import PagedDevice
from engine.paged.inputs import PagedInput, Transfers
from tests.engine.device.paged_refused_steps import (
    AGAIN,
    BATCH,
    BEFORE,
    CHUNK,
    DECODE,
    PAGED_CASES,
    SHAPE,
    SHARING,
    SWAPPED,
    TRANSFERS,
)
from tests.engine.device.refused_steps import Case, assert_refused, parameters
from tests.refusals import refusal


def prepared(**shape: Any) -> PagedDevice:
    """The device with everything in its cache that the steps begin with."""
    device = PagedDevice(SHAPE)
    device.compute(BEFORE)
    device.compute(CHUNK)
    device._shape = evolve(SHAPE, **shape)
    return device


def done(device: PagedDevice, step: PagedInput | Transfers) -> None:
    if isinstance(step, Transfers):
        device.transfer(step)
    else:
        device.compute(step)


@pytest.mark.parametrize("step", [BATCH, DECODE, AGAIN, SHARING])
def test_the_steps_that_the_cases_change_are_fine(step: PagedInput) -> None:
    assert len(prepared().compute(step)) == len(step.logits_indices)


def test_the_transfers_that_the_cases_change_are_fine() -> None:
    device = prepared()
    device.transfer(SWAPPED)
    device.transfer(TRANSFERS)

    assert len(device.compute(DECODE)) == 2


@pytest.mark.parametrize(("constraint", "case"), parameters(PAGED_CASES))
def test_step_is_refused(constraint: Constraint, case: Case) -> None:
    device = prepared(**case.config)
    for step in case.before:
        done(device, step)

    assert_refused(device, partial(done, device), case, constraint)


def test_refusal_says_what_was_broken_where_and_by_how_much() -> None:
    assert refusal(ConstraintError, prepared(captured_sizes=(1,)).compute, DECODE) == (
        "the device refuses: captured size: A captured step has one token a row, and a captured "
        "size holds it. Found: rows 2, tokens 2, largest 1"
    )
