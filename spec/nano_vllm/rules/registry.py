"""The registry of nano-vLLM's rules, their sources, and what its state rules look at."""

from functools import partial
from typing import Any, TypeAlias

from attrs import evolve

from spec.core import changes, rule
from spec.core.changes import Change, Look, looking
from spec.core.judging import once
from spec.core.records import SomeContext
from spec.core.rule import Registry, Source
from spec.core.sharing import SharedMap
from spec.nano_vllm.config import NanoVllmConfig
from spec.nano_vllm.records import Context, State, Step

Rule: TypeAlias = rule.Rule[NanoVllmConfig, Context, State, Step]

NANO_VLLM: Registry[NanoVllmConfig, Context, State, Step] = Registry()
REGISTRY = NANO_VLLM.rules
always, of_step, guard = NANO_VLLM.always, NANO_VLLM.of_step, NANO_VLLM.guard
witness = NANO_VLLM.witness
between, eventually, applicable = NANO_VLLM.between, NANO_VLLM.eventually, NANO_VLLM.applicable

text = partial(Source, "nano-vllm")  # a slide of the text on nano-vLLM's scheduler
release = partial(Source, "nano-vllm 9e8507e")  # what it does and the text does not mention


def differs(before: SharedMap[Any, Any], after: SharedMap[Any, Any]) -> bool:
    """True if two maps have another value, or none, under some key."""
    return any(before.get(key) != after.get(key) for key in changes.changed(before, after))


looking_at = looking(State)
changed_pool: Look[State] = looking_at(changes.changed_pool)


@looking_at
def each_request(_ctx: SomeContext, change: Change[State]) -> State:
    """Look at requests that are not as they were, where each is judged by itself."""
    touched = changes.ids(change.touched[1])
    running = tuple(one for one in change.after.running if one.id in touched)
    return evolve(change.after, waiting=change.queue[1], running=running)


@looking_at
@once
def refilled(ctx: Context, change: Change[State]) -> State | None:
    """Look at requests whose table or filling changed, and at those with a changed key in it."""
    size = ctx.config.block_size
    rows = change.altered(
        lambda one, now: (
            one.computed // size == now.computed // size
            and -(-one.computed // size) == -(-now.computed // size)
        )
    )
    return evolve(change.after, waiting=(), running=rows) if rows else None
