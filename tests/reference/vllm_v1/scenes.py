"""Small scenes for the vLLM V1 machine: requests that have arrived, steps that were taken.

Blocks of 4 tokens, unless a scene says otherwise.
"""

from collections.abc import Mapping
from typing import Any

from reference.vllm_v1.machine import VllmV1Machine
from reference.vllm_v1.step import Environment
from spec.core.requests import Prompt, Request
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import State, Step

SMALL: dict[str, Any] = {
    "block_size": 4,
    "max_model_len": 64,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "num_blocks": 40,
    "prefix_caching": False,
}


def request(id_: str, prompt_len: int, max_tokens: int = 8, **more: Any) -> Request:
    prompt = Prompt.of_stream(f"prompt {id_}", prompt_len)
    return Request(id=id_, prompt=prompt, max_tokens=max_tokens, **more)


def of_parts(id_: str, *parts: tuple[str, int], max_tokens: int = 8) -> Request:
    return Request(id=id_, prompt=Prompt.of_parts(parts), max_tokens=max_tokens)


def machine(
    *requests: Request, external: Mapping[str, int] | None = None, **config: Any
) -> VllmV1Machine:
    return VllmV1Machine.of(VllmV1Config(**(SMALL | config)), requests, external)


def arrived(machine: VllmV1Machine, *ids: str, state: State | None = None) -> State:
    """These have arrived in this order, or all if none is named."""
    state = state or machine.initial()
    for id_ in ids or machine.ctx.requests:
        state = machine.arrive(state, id_)
    return state


def steps_from(
    machine: VllmV1Machine, state: State, count: int, environment: Environment | None = None
) -> list[Step]:
    steps: list[Step] = []
    for index in range(count):
        steps.append(machine.step(state, environment, index=index))
        state = steps[-1].after
    return steps


def steps_to_the_end(machine: VllmV1Machine, state: State) -> list[Step]:
    steps: list[Step] = []
    while not state.is_idle:
        steps.append(machine.step(state, index=len(steps)))
        state = steps[-1].after
        assert len(steps) < 20_000, "no end in sight"
    return steps


def ids(state: State) -> dict[str, list[str]]:
    """Who is where, empty places left out."""
    places = {
        "waiting": [one.id for one in state.waiting],
        "skipped": [one.id for one in state.skipped],
        "running": [one.id for one in state.running],
        "finished": sorted(state.finished),
        "aborted": sorted(state.aborted),
    }
    return {place: there for place, there in places.items() if there}


def accepting(count: int) -> Environment:
    """Nobody ends early; of the drafts of each request the first `count` are accepted."""
    return Environment(ends=lambda _row: False, accepted=lambda _row, drafts: min(count, drafts))
