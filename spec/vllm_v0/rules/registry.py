"""The registry of vLLM V0's rules, their sources, and common look-ups."""

from collections.abc import Iterable
from functools import partial
from typing import TypeAlias

from spec.core import rule
from spec.core.rule import Registry, Source
from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.records import Context, Group, Sequence, State, Step
from spec.vllm_v0.variants import Reading

Rule: TypeAlias = rule.Rule[VllmV0Config, Context, State, Step]

VLLM_V0: Registry[VllmV0Config, Context, State, Step] = Registry()
REGISTRY = VLLM_V0.rules
always, of_step, witness = VLLM_V0.always, VLLM_V0.of_step, VLLM_V0.witness
between, eventually, applicable = VLLM_V0.between, VLLM_V0.eventually, VLLM_V0.applicable

text = partial(Source, "vllm-v0")  # a section of the text on vLLM V0's scheduler
code = partial(Source, "vLLM 0.9.2")  # what the release does and its text does not mention


def is_documented(config: VllmV0Config) -> bool:
    """True for the reading `documented`, the literal text."""
    return config.reading is Reading.DOCUMENTED


def is_released(config: VllmV0Config) -> bool:
    """True for the reading `released`, without its repairs."""
    return config.reading is Reading.RELEASED


def by_id(groups: Iterable[Group]) -> dict[str, Group]:
    """The groups by id."""
    return {group.id: group for group in groups}


def sequences_by_id(groups: Iterable[Group]) -> dict[str, Sequence]:
    """All sequences of the groups by id."""
    return {sequence.id: sequence for group in groups for sequence in group.sequences}


def ids(groups: Iterable[Group]) -> list[str]:
    """The ids of the groups, in order."""
    return [group.id for group in groups]


def victims(step: Step) -> set[str]:
    """Groups that ran and released their blocks in this step."""
    gone = {*step.preempted, *step.swapped_out}
    if step.ignored:
        gone |= {group.id for group in step.before.running} & {*step.ignored}
    return gone


def slot_victims(step: Step) -> set[str]:
    """Groups that were preempted because slots were lacking, not for a more urgent group."""
    return victims(step).difference(step.by_priority)
