"""Costs of steps: units of the published timeline, or a sum over computed and read tokens."""

from typing import Any

import pytest

from engine.core.clock import CostModel, Work
from spec.core.errors import ConfigError
from spec.spyre.config import SpyreConfig
from tests.refusals import refusal


def test_steps_cost_the_units_of_the_published_timeline_by_default() -> None:
    cost = CostModel()

    assert Work(kind="prefill", chunk_tokens=512, cached_tokens=10_000).duration(cost) == 8
    assert Work(kind="decode", rows=32, cached_tokens=10_000).duration(cost) == 1
    assert Work(kind="idle").duration(cost) == 1


def test_costs_per_step_come_from_the_configuration() -> None:
    config = SpyreConfig(prefill_time=3, decode_time=0.5)

    assert CostModel.from_mapping({}, config) == CostModel(prefill_time=3, decode_time=0.5)


def test_step_costs_what_it_computes_and_reads() -> None:
    table = {"per_chunk_token": 0.25, "per_row": 2, "per_cached_token": 0.125}
    cost = CostModel.from_mapping(table, SpyreConfig())

    assert Work(kind="prefill", chunk_tokens=4, cached_tokens=16).duration(cost) == 8 + 1 + 2
    assert Work(kind="decode", rows=3, cached_tokens=40).duration(cost) == 1 + 6 + 5


KEYS = "a key out of per_chunk_token, per_row, per_cached_token"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"per_token": 1}, f"per_token: found 1; allowed: {KEYS}"),
        ({"decode_time": 1}, f"decode_time: found 1; allowed: {KEYS}"),
        ({"per_row": -1}, "per_row: found -1; allowed: 0 or more"),
        ({"per_row": float("nan")}, "per_row: found nan; allowed: 0 or more"),
        ({"per_row": float("inf")}, "per_row: found inf; allowed: 0 or more"),
        ({"per_row": True}, "per_row: found True; allowed: a number"),
        ({"per_row": "1"}, "per_row: found '1'; allowed: a number"),
    ],
)
def test_cost_that_is_none_is_refused(table: dict[str, Any], message: str) -> None:
    assert refusal(ConfigError, CostModel.from_mapping, table, SpyreConfig()) == f"cost.{message}"
