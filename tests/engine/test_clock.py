"""Costs of steps: units of the published timeline, or a sum over computed and read tokens."""

from typing import Any

import pytest

from engine.core.clock import COUNTS, GPU_ESTIMATE, CostModel, Work, attended
from spec.core.errors import ConfigError
from spec.spyre.config import SpyreConfig
from tests.refusals import refusal


def test_steps_cost_the_units_of_the_published_timeline_by_default() -> None:
    cost = COUNTS

    assert Work(kind="prefill", chunk_tokens=512, cached_tokens=10_000).duration(cost) == 8
    assert Work(kind="decode", rows=32, cached_tokens=10_000).duration(cost) == 1
    assert Work(kind="idle").duration(cost) == 1


def test_step_costs_what_it_computes_and_reads() -> None:
    table = {"per_chunk_token": 0.25, "per_row": 2, "per_cached_token": 0.125}
    cost = CostModel.from_mapping(table, SpyreConfig())

    assert Work(kind="prefill", chunk_tokens=4, cached_tokens=16).duration(cost) == 8 + 1 + 2
    assert Work(kind="decode", rows=3, cached_tokens=40).duration(cost) == 1 + 6 + 5


def test_step_costs_the_pairs_that_it_attends_to() -> None:
    cost = CostModel.from_mapping({"per_attended_token": 0.5}, SpyreConfig())

    assert attended(10, 3) == 11 + 12 + 13
    assert Work(kind="prefill", attended_tokens=attended(10, 3)).duration(cost) == 8 + 18


def test_step_times_of_the_table_go_before_those_of_the_configuration() -> None:
    config = SpyreConfig(prefill_time=3)

    cost = CostModel.from_mapping({"prefill_time": 2, "per_row": 0.5}, config)

    assert cost == CostModel(prefill_time=2, decode_time=1, per_row=0.5)
    assert cost.as_mapping(config) == {"prefill_time": 2, "per_row": 0.5}
    assert CostModel.from_mapping(cost.as_mapping(config), config) == cost


def test_estimate_follows_from_the_data_sheet() -> None:
    bandwidth, peak, parameters, layers = 2.039e12, 312e12, 70.6e9, 80
    unit = 2 * parameters / bandwidth  # seconds, on one device

    assert GPU_ESTIMATE.per_row == GPU_ESTIMATE.per_chunk_token
    assert GPU_ESTIMATE.per_row == pytest.approx(2 * parameters / peak / unit, rel=0.02)
    read = 2 * layers * 8 * 128 * 2 / bandwidth
    assert GPU_ESTIMATE.per_cached_token == pytest.approx(read / unit, rel=0.02)
    pair = 4 * layers * 8192 / peak
    assert GPU_ESTIMATE.per_attended_token == pytest.approx(pair / unit, rel=0.02)


KEYS = (
    "a key out of prefill_time, decode_time, per_chunk_token, per_row, per_cached_token, "
    "per_attended_token"
)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"per_token": 1}, f"per_token: found 1; allowed: {KEYS}"),
        ({"decode_time": -1}, "decode_time: found -1; allowed: 0 or more"),
        ({"per_row": -1}, "per_row: found -1; allowed: 0 or more"),
        ({"per_row": float("nan")}, "per_row: found nan; allowed: 0 or more"),
        ({"per_row": float("inf")}, "per_row: found inf; allowed: 0 or more"),
        ({"per_row": True}, "per_row: found True; allowed: a number"),
        ({"per_row": "1"}, "per_row: found '1'; allowed: a number"),
    ],
)
def test_cost_that_is_none_is_refused(table: dict[str, Any], message: str) -> None:
    assert refusal(ConfigError, CostModel.from_mapping, table, SpyreConfig()) == f"cost.{message}"
