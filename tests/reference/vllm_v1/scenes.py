"""Small scenes for the vLLM V1 machine: requests that have arrived, steps that were taken.

Blocks of 4 tokens, unless a scene says otherwise.
"""

from collections.abc import Mapping
from typing import Any

from reference.vllm_v1.machine import VllmV1Machine
from reference.vllm_v1.step import Environment
from spec.core.requests import Request
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import State
from tests.reference.scenes import SMALL, places


def machine(
    *requests: Request, external: Mapping[str, int] | None = None, **config: Any
) -> VllmV1Machine:
    small = SMALL | {"max_num_batched_tokens": 64, "prefix_caching": False}
    return VllmV1Machine.of(VllmV1Config(**(small | config)), requests, external)


def ids(state: State) -> dict[str, list[str]]:
    """The ids in each place, empty places left out."""
    return places(state, "waiting skipped running finished aborted")


def accepting(count: int) -> Environment:
    """No request ends early; of the drafts of each request the first `count` are accepted."""
    return Environment(ends=lambda _row: False, accepted=lambda _row, drafts: min(count, drafts))
