"""Small scenes: a machine, requests that have arrived, a decode batch, steps that were taken.

Blocks of 4 tokens and chunks of 8, unless a scene says otherwise.
"""

from collections.abc import Sequence as Seq
from typing import Any

from attrs import evolve

from reference.core.block_pool import allocate
from reference.spyre import transitions
from reference.spyre.machine import SpyreMachine
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Step
from spec.spyre.state import Sequence, State
from tests.reference.scenes import SMALL, arrived, places


def machine(*requests: Request, **config: Any) -> SpyreMachine:
    small = SMALL | {"chunk_size": 8, "prefix_caching": False}
    return SpyreMachine.of(SpyreConfig(**(small | config)), requests)


def batch(machine: SpyreMachine, **rows: tuple[int, int]) -> State:
    """A decode batch: by request its computed tokens and the left padding of its last step."""
    state = machine.initial()
    for id_, (computed, left_padding) in rows.items():
        asked = machine.ctx.requests[id_]
        pool, blocks = allocate(state.pool, -(-computed // machine.ctx.config.block_size))
        row = Sequence(
            id_,
            prefill_len=asked.prompt_len,
            computed=computed,
            generated=computed - asked.prompt_len + 1,
            left_padding=left_padding,
            blocks=blocks,
        )
        state = evolve(state, pool=pool, decoding=(*state.decoding, row))
    return evolve(state, last_kind="decode")


def ids(state: State) -> dict[str, list[str]]:
    """The ids in each place, empty places left out."""
    return places(state, "waiting prefilling decoding paused finished aborted")


def admitted(scene: SpyreMachine, state: State | None = None) -> State:
    """The head of the queue in the prefill slot, with its cached blocks and its reservation."""
    state = arrived(scene) if state is None else state
    state, _ = transitions.admit(scene.ctx, state, state.waiting[0])
    state, _ = transitions.prefix_hit(scene.ctx, state)
    return transitions.reserve(scene.ctx, state)[0]


def log(steps: Seq[Step]) -> list[str]:
    """Each step in a few words: the chunk that was computed, or the rows that decoded."""
    return [
        f"{step.chunk.id} {step.chunk.chunk + 1}/{step.chunk.chunks}"
        if step.chunk
        else "+".join(row.id for row in step.batch) or step.kind
        for step in steps
    ]


def tkvs(step: Step) -> dict[str, int]:
    return {row.id: row.tkv for row in step.batch}
