"""The tensors of every step are those that one would lay out by hand."""

from typing import Any

import numpy as np
import pytest
from attrs import fields

from checks.policies.spyre.engine import sampled_alone
from engine.spyre.device import DecodeInput, PrefillInput
from engine.spyre.model_input import decode_input, prefill_input
from engine.spyre.scheduler import DecodePlan, PrefillPlan, Scheduler
from engine.spyre.scheduler.requests import RequestState
from tests.engine import scenes
from tests.engine.device import batches
from tests.engine.scenes import config, scheduler_with, sharing
from tests.requests import request


def row_of(
    request: RequestState, generated: int, blocks: tuple[int, ...], cached: int = 0
) -> batches.Row:
    """A request as tensors are laid out by hand: all its tokens, and its blocks."""
    tokens = [
        *request.request.prompt.tokens(),
        *map(request.request.output_token, range(generated)),
    ]
    return batches.Row.of(tokens, blocks, cached)


def same(found: PrefillInput | DecodeInput, expected: PrefillInput | DecodeInput) -> None:
    """Every tensor has the same numbers, in 64 bits."""
    for field in fields(type(expected)):
        tensor = getattr(found, field.name)
        assert tensor.dtype == np.int64, field.name
        assert tensor.tolist() == getattr(expected, field.name).tolist(), field.name


def expected_prefill(scheduler: Scheduler, plan: PrefillPlan) -> PrefillInput:
    request = plan.request
    row = row_of(
        request, request.prefill_len - request.request.prompt_len, plan.table, plan.hit_blocks
    )
    return batches.prefill_input(scheduler.state.config, row, plan.chunk.chunk)


def expected_decode(scheduler: Scheduler, plan: DecodePlan) -> DecodeInput:
    new = dict(zip(plan.growing, plan.new_blocks, strict=True))
    generated = plan.rows.generated().tolist()
    rows = [
        row_of(member, generated[index], (*member.blocks, *([new[index]] if index in new else [])))
        for index, member in enumerate(plan.rows.members)
    ]
    return batches.decode_input(scheduler.state.config, rows)


@pytest.mark.parametrize(
    ("changes", "happens"),
    [
        ({}, "left_padding"),
        ({}, "hit_blocks"),
        ({"reservation": False, "num_blocks": 11, "max_num_seqs": 3}, "preempted"),
        ({"pausing": True, "max_batch_tkv_limit": 50}, "newly_paused"),
        ({"block_size": 1, "chunk_size": 3, "num_blocks": 90}, "new_blocks"),
        ({"prefix_caching": False}, "growing"),
    ],
)
def test_tensors_of_a_whole_run(changes: dict[str, Any], happens: str) -> None:
    requests = [sharing(name, 9, 4 * index, 14) for index, name in enumerate("abcd")]
    scheduler = scheduler_with(config(**changes), [*requests, request("e", 25, 16)])
    happened = 0
    while scheduler.has_requests:
        plan = scheduler.schedule()
        match plan:
            case PrefillPlan():
                same(prefill_input(scheduler, plan), expected_prefill(scheduler, plan))
            case DecodePlan():
                same(decode_input(scheduler, plan), expected_decode(scheduler, plan))
        seen = getattr(plan, happens, None)
        happened += seen is not None and bool(np.any(seen))
        scheduler.update(plan, sampled_alone(plan))
    assert happened


def test_tensors_belong_to_the_device() -> None:
    scheduler = scheduler_with(config(), [request("a", 3, 5), request("b", 9, 5)])
    for _ in range(6):
        scenes.step(scheduler)
    plan = scheduler.schedule()
    assert isinstance(plan, DecodePlan)
    given = decode_input(scheduler, plan)
    names = [field.name for field in fields(DecodeInput)]
    kept = [getattr(given, name).tolist() for name in names]

    list(scenes.steps(scheduler))

    assert kept == [getattr(given, name).tolist() for name in names]
