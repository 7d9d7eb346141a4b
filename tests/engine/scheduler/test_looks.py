"""Quick checks of the scheduler: where one decides, the full check does not run."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.spyre.scheduler import DecodePlan, admission, apply, decode, prefill
from engine.spyre.scheduler.admission import LastChunk, exact_volume_holds, surely_exceed
from engine.spyre.scheduler.requests import Batch, RequestState
from tests.engine.scenes import config, scheduler_with, step
from tests.requests import request


def rows(*values: int) -> Any:
    return np.array(values, np.int64)


def decoding(*lengths: tuple[int, int], **keys: Any) -> Any:
    """A scheduler whose requests, of these prompt and answer lengths, all decode."""
    requests = [request(str(index), *length) for index, length in enumerate(lengths)]
    scheduler = scheduler_with(config(**keys), requests)
    while len(scheduler.state.decoding) < len(lengths):
        step(scheduler)
    return scheduler


# --- admission ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("candidate", "limit", "exceeds"),
    [
        ((10, 60), 299, True),  # it lives on: 2 rows reach 100 + 50 tokens
        ((10, 60), 300, False),
        ((10, 51), 299, True),  # it ends in the same step
        ((10, 50), 298, False),  # one before: 2 rows have 149 tokens
    ],
)
def test_a_shape_is_refused_at_once_that_exceeds_the_limit_wherever_its_blocks_end(
    candidate: tuple[int, int], limit: int, exceeds: bool
) -> None:
    """One request decodes, of 100 tokens with 50 to go."""
    found = surely_exceed(rows(100), rows(50), np.array([candidate], np.int64), limit)

    assert found.tolist() == [exceeds]


def test_shapes_are_refused_at_once_by_what_decodes_and_what_they_are_themselves() -> None:
    """A prompt of 4 with an answer of 12 decodes: with one of 4 tokens they come to 2 x 16."""
    state = decoding((4, 12), max_batch_tkv_limit=24).state
    shapes = np.array([(4, 4), (4, 12), (12, 4), (12, 12)], np.int64)

    refused = LastChunk(state.config).refused_shapes(state.decoding, shapes)

    assert refused == {(4, 12), (12, 4), (12, 12)}


def test_no_step_is_looked_at_where_one_end_exceeds_the_limit_wherever_blocks_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At 100 + 50 tokens there are 2 rows. At its own end the candidate is alone, and may fit."""
    monkeypatch.delattr(admission, "_peak_volumes")

    assert not exact_volume_holds(rows(100), rows(50), (10, 285), limit=299, block_size=64)


def test_the_batch_is_described_once_for_all_conditions_of_the_specification(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of the text: two of its conditions have no faster way."""
    described = list[object]()
    describe = LastChunk._joining

    def noted(self: LastChunk, *given: Any) -> Any:
        described.append(given)
        return describe(self, *given)

    monkeypatch.setattr(LastChunk, "_joining", noted)
    conditions = LastChunk(config(admission="documented", interleave=False))

    refusal = conditions.refusal(Batch.empty(), 0, RequestState.of(request("a", 4, 4)))

    assert (refusal, len(described)) == (None, 1)


def test_no_cached_block_is_looked_up_where_the_worst_case_fits_the_free_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A prompt of 6 and an answer of 10 take 4 blocks."""
    scheduler = scheduler_with(config(reservation=True, num_blocks=4), [request("a", 6, 10)])
    monkeypatch.delattr(prefill, "prefix_hit")

    (waiting,) = scheduler.state.queue

    assert prefill._block_refusal(scheduler.state, waiting) is None


# --- decoding -------------------------------------------------------------------------------------


def test_rows_are_laid_out_only_where_one_has_filled_its_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks of 4: in the second step the longer row fills its third one."""
    scheduler = decoding((9, 9), (5, 9))
    step(scheduler)
    monkeypatch.delattr(decode, "layout")

    plan, _ = step(scheduler)

    assert isinstance(plan, DecodePlan)
    assert (len(plan.rows), plan.tkv) == (2, 12)


def test_no_row_is_chosen_where_all_fit_the_limit_to_its_last_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two rows of which the longer comes to 12 tokens."""
    scheduler = decoding((9, 9), (5, 9), pausing=True, max_batch_tkv_limit=24)
    step(scheduler)
    monkeypatch.delattr(decode, "_within_limit")

    plan, _ = step(scheduler)

    assert isinstance(plan, DecodePlan)
    assert (len(plan.rows), plan.tkv) == (2, 12)


def test_no_row_is_asked_for_its_end_before_the_first_of_them_ends() -> None:
    unknown: Any = SimpleNamespace(steps_to_end=1)  # and nothing else of the rows

    assert apply._ending_rows(unknown, None) == []
