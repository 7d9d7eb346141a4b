"""The registry of vLLM V1's rules, their sources, and look-ups that several rules share."""

from collections.abc import Iterable
from functools import partial
from typing import TypeAlias

from spec.core import rule
from spec.core.rule import Registry, Source
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.groups import NULL_BLOCK
from spec.vllm_v1.records import Context, GivenBack, Sequence, State, Step

Rule: TypeAlias = rule.Rule[VllmV1Config, Context, State, Step]

VLLM_V1: Registry[VllmV1Config, Context, State, Step] = Registry()
REGISTRY = VLLM_V1.rules
always, of_step, witness = VLLM_V1.always, VLLM_V1.of_step, VLLM_V1.witness
between, eventually, applicable = VLLM_V1.between, VLLM_V1.eventually, VLLM_V1.applicable

text = partial(Source, "vllm-v1")  # a section of the text on vLLM V1's scheduler
code = partial(Source, "vLLM 0.28.0")  # what the release does and its text does not mention


def holders(state: State) -> tuple[Sequence, ...]:
    """Every request that may hold blocks."""
    return (*state.present, *state.draining)


def tables(state: State) -> tuple[Sequence | GivenBack, ...]:
    """Every block table that is held: of requests, and those given back and not free yet.

    Of several groups of layers each has its own.
    """
    late = (table for flight in state.flights for table in flight.frees)
    further = (
        GivenBack(row.id, tuple(block for block in table if block != NULL_BLOCK))
        for row in holders(state)
        for table in row.tables
    )
    return (*holders(state), *late, *further)


def has_one_group(config: VllmV1Config) -> bool:
    """True if all layers have the same block tables."""
    return not config.groups


def has_groups(config: VllmV1Config) -> bool:
    """True if layers have block tables of their own."""
    return bool(config.groups)


def by_id(rows: Iterable[Sequence]) -> dict[str, Sequence]:
    """The requests by their ids."""
    return {row.id: row for row in rows}


def hits(step: Step) -> dict[str, tuple[int, ...]]:
    """The cached blocks that each request took in this step."""
    return {event.id: event.after for event in step.happened("prefix_hit")}
