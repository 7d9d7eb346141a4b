"""Small scenes: a machine, requests that have arrived, steps that were taken.

Blocks of 4 tokens and a budget of 64, unless a scene says otherwise.
"""

from typing import Any

from reference.nano_vllm.machine import NanoVllmMachine
from spec.core.requests import Request
from spec.nano_vllm.config import NanoVllmConfig
from spec.nano_vllm.records import State, Step
from tests.reference.scenes import SMALL


def machine(*requests: Request, **config: Any) -> NanoVllmMachine:
    small = SMALL | {"max_num_batched_tokens": 64}
    return NanoVllmMachine.of(NanoVllmConfig(**(small | config)), requests)


def log(step: Step) -> str:
    """A step in a few words: its kind and its batch."""
    return " ".join([step.kind, *(row.id for row in step.batch)])


def queues(state: State) -> tuple[str, str]:
    """The ids that wait and those that run, front first."""
    return " ".join(request.id for request in state.waiting), " ".join(
        request.id for request in state.running
    )
