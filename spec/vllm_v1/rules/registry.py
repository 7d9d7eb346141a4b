"""The registry of vLLM V1's rules, their sources, and what several of them look at."""

from collections.abc import Iterable
from functools import partial
from typing import TypeAlias

from spec.core import changes, rule
from spec.core.changes import Change, Look, looking
from spec.core.records import SomeContext
from spec.core.rule import Registry, Source
from spec.vllm_v1.config import Connector, VllmV1Config
from spec.vllm_v1.records import Context, Sequence, State, Step

Rule: TypeAlias = rule.Rule[VllmV1Config, Context, State, Step]

VLLM_V1: Registry[VllmV1Config, Context, State, Step] = Registry()
REGISTRY = VLLM_V1.rules
always, of_step, witness = VLLM_V1.always, VLLM_V1.of_step, VLLM_V1.witness
between, eventually, applicable = VLLM_V1.between, VLLM_V1.eventually, VLLM_V1.applicable

text = partial(Source, "vllm-v1")  # a section of the text on vLLM V1's scheduler
code = partial(Source, "vLLM 0.28.0")  # what the release does and its text does not mention


looking_at = looking(State)
each_request: Look[State] = looking_at(changes.new_requests)
changed_pool: Look[State] = looking_at(changes.changed_pool)
changed_contents: Look[State] = looking_at(changes.changed_contents)


def waiting_may_hold(ctx: SomeContext) -> bool:
    """True if requests that wait untouched may hold blocks: what was loaded for them."""
    return ctx.config.connector is Connector.ASYNC


def holders(ctx: Context, change: Change[State]) -> tuple[Sequence, ...]:
    """All that may have held blocks before the change, and all else that it has touched."""
    before = change.before
    return (*before.present, *before.draining) if waiting_may_hold(ctx) else change.left


def names(change: Change[State]) -> tuple[frozenset[str], frozenset[str]]:
    """The requests before and after a change, without those that wait untouched."""
    draining = changes.ids(change.before.draining), changes.ids(change.after.draining)
    return changes.ids(change.left) - draining[0], changes.ids(change.entered) - draining[1]


def by_id(rows: Iterable[Sequence]) -> dict[str, Sequence]:
    """The requests by their names."""
    return {one.id: one for one in rows}


def hits(step: Step) -> dict[str, tuple[int, ...]]:
    """The cached blocks that each request took in this step."""
    return {event.id: event.after for event in step.happened("prefix_hit")}
