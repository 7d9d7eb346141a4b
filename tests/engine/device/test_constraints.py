"""Everything that the device refuses: the smallest steps that break it, and nothing else."""

from copy import deepcopy

import numpy as np
import pytest

from engine.device.constraints import SAYS, Constraint
from engine.device.faults import ConstraintError
from engine.device.inputs import PrefillInput
from engine.device.spyre import SpyreDevice
from tests.engine.device.batches import config, prefill_input
from tests.engine.device.refused_steps import BATCH, CASES, CHUNK, FIRST, SECOND, THIRD, Case, Step


def prepared(case: Case) -> SpyreDevice:
    """The device with everything in its cache that the steps above begin with."""
    device = SpyreDevice(config(**case.config))
    for row, chunk in ((FIRST, 0), (SECOND, 0), (THIRD, 0)):
        device.prefill(prefill_input(config(), row, chunk))
    for step in case.before:
        done(device, step)
    return device


def done(device: SpyreDevice, step: Step) -> list[int]:
    tokens = device.prefill(step) if isinstance(step, PrefillInput) else device.decode(step)
    return [int(token) for token in tokens]


def test_the_steps_that_the_cases_change_are_fine() -> None:
    device = prepared(Case("", Constraint.SHAPE, BATCH, {}))

    assert len(done(device, BATCH)) == 2
    assert len(done(device, CHUNK)) == 1


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_step_is_refused(case: Case) -> None:
    device = prepared(case)
    cache = deepcopy(vars(device._cache))

    with pytest.raises(ConstraintError) as refused:
        done(device, case.step)

    assert refused.value.constraint == case.constraint
    assert refused.value.numbers == case.numbers
    for name, before in cache.items():
        assert np.array_equal(getattr(device._cache, name), before), "a refused step left a trace"


def test_refusal_says_what_was_broken_where_and_by_how_much() -> None:
    device = SpyreDevice(config(max_batch_tkv_limit=15))

    with pytest.raises(ConstraintError) as refused:
        device.decode(BATCH)

    assert str(refused.value) == (
        "the device refuses: volume: Batch size times the largest tkv does not exceed the limit. "
        "Found: rows 2, tkv 8, limit 15"
    )


def test_every_constraint_has_its_case_and_its_sentence() -> None:
    assert {case.constraint for case in CASES} == set(Constraint) == set(SAYS)
