"""Requests that are refused at the door, and that the others can be served."""

from typing import Any

from spec.core.errors import WorkloadError
from tests.reference.scenes import arrived, steps_to_the_end
from tests.reference.vllm_v1.scenes import machine
from tests.refusals import refusal
from tests.requests import request

UNCUT: dict[str, Any] = {"chunked_prefill": False, "max_num_batched_tokens": 8}  # tokens


def test_a_threshold_above_the_budget_does_not_make_a_long_prompt_servable() -> None:
    """It would cut 10 tokens to 9, which no step of 8 holds: the request would wait for ever."""
    sizes = UNCUT | {"long_prefill_token_threshold": 9}

    assert refusal(WorkloadError, machine, request("0", 10), **sizes) == (
        "prompt_len + max_tokens - 1: found 17; "
        "allowed: at most max_num_batched_tokens (8) without chunked prefill"
    )


def test_a_threshold_within_the_budget_does() -> None:
    scene = machine(request("0", 10), **UNCUT, long_prefill_token_threshold=8)
    steps = steps_to_the_end(scene, arrived(scene))
    assert [step.scheduled["0"] for step in steps] == [8, 2, *[1] * 7]
