"""Small scenes: a machine, requests that have arrived, steps that were taken.

Blocks of 4 tokens and a budget of 64, unless a scene says otherwise.
"""

from typing import Any

from reference.nano_vllm.machine import NanoVllmMachine
from spec.core.requests import Prompt, Request
from spec.nano_vllm.config import NanoVllmConfig
from spec.nano_vllm.records import State, Step

SMALL: dict[str, Any] = {
    "block_size": 4,
    "max_num_batched_tokens": 64,
    "max_model_len": 64,
    "max_num_seqs": 4,
    "num_blocks": 40,
}


def request(id_: str, prompt_len: int, max_tokens: int = 8, **more: Any) -> Request:
    prompt = Prompt.of_stream(f"prompt {id_}", prompt_len)
    return Request(id=id_, prompt=prompt, max_tokens=max_tokens, **more)


def of_parts(id_: str, *parts: tuple[str, int], max_tokens: int = 8) -> Request:
    return Request(id=id_, prompt=Prompt.of_parts(parts), max_tokens=max_tokens)


def machine(*requests: Request, **config: Any) -> NanoVllmMachine:
    return NanoVllmMachine.of(NanoVllmConfig(**(SMALL | config)), requests)


def arrived(scene: NanoVllmMachine, *ids: str, after: State | None = None) -> State:
    """These have arrived in this order, or all if none is named."""
    state = scene.initial() if after is None else after
    for id_ in ids or scene.ctx.requests:
        state = scene.arrive(state, id_)
    return state


def steps_from(scene: NanoVllmMachine, state: State, count: int) -> list[Step]:
    steps: list[Step] = []
    for index in range(count):
        steps.append(scene.step(state, index=index))
        state = steps[-1].after
    return steps


def steps_to_the_end(scene: NanoVllmMachine, state: State) -> list[Step]:
    steps: list[Step] = []
    while not state.is_idle:
        steps.append(scene.step(state, index=len(steps)))
        state = steps[-1].after
        assert len(steps) < 1_000, "no end in sight"
    return steps


def told(step: Step) -> str:
    """A step in a few words: its kind and its batch."""
    return " ".join([step.kind, *(row.id for row in step.batch)])


def queues(state: State) -> tuple[str, str]:
    """Who waits and who runs, front first."""
    return (
        " ".join(one.id for one in state.waiting),
        " ".join(one.id for one in state.running),
    )
