"""The device computes every step of the reference, with the same tokens.

The tensors are built from what a step says of itself. So the two sides of the contract, which know
nothing of each other, agree on padding, tkv, block tables, cached blocks and redirected writes.
"""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from checks.harness.campaigns.campaign import Plan
from checks.harness.case import Case
from checks.harness.policy import Own
from checks.harness.runs.serving import served
from engine.core.faults import Constraint
from engine.spyre.device import DecodeInput, PrefillInput, SpyreDevice
from spec.core.records import DECODE, PREFILL
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Step
from spec.spyre.variants import Admission
from tests.refusals import device_refuses
from tests.requests import request


def tokens_of(request: Request, count: int) -> list[int]:
    """The first tokens of a request, prompt and answer."""
    answer = range(max(count - request.prompt_len, 0))
    return [*request.prompt.tokens()[:count], *(request.output_token(index) for index in answer)]


def prefill_tensors(config: SpyreConfig, step: Step, request: Request) -> PrefillInput:
    chunk = step.chunk
    assert chunk is not None
    size, real = config.block_size, chunk.end - chunk.start
    token_ids, positions, slots = (np.zeros(config.chunk_size, dtype=np.int64) for _ in range(3))
    first = chunk.left_padding + chunk.start - chunk.chunk * config.chunk_size
    own = slice(first, first + real)
    positions[own] = np.arange(chunk.start, chunk.end)
    token_ids[own] = tokens_of(request, chunk.end)[chunk.start :]
    slots[own] = (np.repeat(chunk.writes, size) * size)[own] + positions[own] % size
    return PrefillInput(
        token_ids=token_ids,
        positions=positions,
        slot_mapping=slots,
        block_table=np.array([chunk.block_table]),
        left_padding=np.array([chunk.left_padding]),
        length=np.array([chunk.left_padding + chunk.end]),
        chunk=np.array([chunk.chunk]),
        is_last=np.array([int(chunk.is_last)]),
    )


def decode_tensors(config: SpyreConfig, step: Step, requests: dict[str, Request]) -> DecodeInput:
    size, batch = config.block_size, step.batch
    newest = np.array([row.computed - 1 for row in batch])
    return DecodeInput(
        token_ids=np.array([tokens_of(requests[row.id], row.computed)[-1] for row in batch]),
        positions=newest,
        slot_mapping=np.array([row.blocks[-1] for row in batch]) * size + newest % size,
        block_table=np.array([(0,) * (row.left_padding // size) + row.blocks for row in batch]),
        left_padding=np.array([row.left_padding for row in batch]),
        tkv=np.array([row.tkv for row in batch]),
    )


def device_tokens(
    device: SpyreDevice, config: SpyreConfig, step: Step, requests: dict[str, Request]
) -> dict[str, tuple[int, ...]]:
    """The tokens that the device samples in this step, by request."""
    if step.kind == PREFILL and step.chunk is not None:
        tokens = device.prefill(prefill_tensors(config, step, requests[step.chunk.id])).tolist()
        return {step.chunk.id: tuple(tokens)} if tokens else {}
    if step.kind == DECODE:
        tokens = device.decode(decode_tensors(config, step, requests)).tolist()
        return {row.id: (token,) for row, token in zip(step.batch, tokens, strict=True)}
    return {}


def shapes_of(config: SpyreConfig, step: Step) -> Counter[str]:
    """The situations of a step, so that a test can require each of them."""
    chunk = step.chunk
    return Counter(
        {
            step.kind: 1,
            "redirected writes": chunk is not None and chunk.inner_padding > 0,
            "skipped chunks": chunk is not None and chunk.cached_tokens > 0,
            "padded prompt": chunk is not None and chunk.left_padding > 0,
            "padded row": any(row.left_padding for row in step.batch),
        }
        | Counter(event.transition for event in step.events)
    )


KEEPING_THE_LIMIT: list[dict[str, Any]] = [
    {"admission": "exact"},
    {"admission": "shipped"},
    {"admission": "exact", "reservation": False, "pausing": False},
]


def agree(number: int) -> Counter[str]:
    """Serve a random case on the reference, every step on the device as well."""
    pinned = KEEPING_THE_LIMIT[number % len(KEEPING_THE_LIMIT)] | {"oversized": "refused"}
    case = Plan(Own("spyre", "reference"), pinned=pinned).case(number)
    config: Any = case.config
    sampling = tuple(
        evolve(request, output=None, output_len=request.end) for request in case.requests
    )
    device, by_id = SpyreDevice(config), {request.id: request for request in sampling}
    met: Counter[str] = Counter()
    for step in served(evolve(case, requests=sampling)):
        assert device_tokens(device, config, step, by_id) == step.outputs
        met += shapes_of(config, step)
    return met


def test_device_does_every_step_of_the_reference_with_the_same_tokens() -> None:
    met = sum(map(agree, range(40)), Counter[str]())

    for needed in ("preempt", "pause", "jump_tkv", "redirected writes", "skipped chunks"):
        assert met[needed] > 2, met


@pytest.mark.thorough
def test_device_does_every_step_of_the_reference_in_thousands_of_runs() -> None:
    assert sum(map(agree, range(100, 4_000)), Counter[str]())[DECODE] > 50_000


def test_batch_that_the_documented_rule_admits_is_refused() -> None:
    """The example of the chapter: 2 x 4 = 8 exceeds the limit of 6."""
    config = SpyreConfig(
        block_size=2,
        chunk_size=2,
        max_model_len=8,
        max_num_seqs=2,
        max_batch_tkv_limit=6,
        admission=Admission.DOCUMENTED,
    )
    requests = [request("0", 1, 4), request("1", 1, 2)]
    device, by_id = SpyreDevice(config), {request.id: request for request in requests}

    with device_refuses(Constraint.VOLUME, rows=2, tkv=4, limit=6):
        for step in served(Case(config, tuple(requests))):
            device_tokens(device, config, step, by_id)
