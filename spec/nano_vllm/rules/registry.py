"""The registry of the nano-vLLM rules."""

from typing import TypeAlias

from spec.core import rule
from spec.core.rule import Registry, Source
from spec.nano_vllm.config import NanoVllmConfig
from spec.nano_vllm.records import Context, State, Step

Rule: TypeAlias = rule.Rule[NanoVllmConfig, Context, State, Step]

NANO_VLLM: Registry[NanoVllmConfig, Context, State, Step] = Registry()
REGISTRY = NANO_VLLM.rules
always = NANO_VLLM.always
of_step = NANO_VLLM.of_step
between = NANO_VLLM.between
eventually = NANO_VLLM.eventually
applicable = NANO_VLLM.applicable


def text(section: str) -> Source:
    """A slide of the text on nano-vLLM's scheduler."""
    return Source("nano-vllm", section)


def release(section: str) -> Source:
    """Behaviour of the released commit that the text does not mention."""
    return Source("nano-vllm 9e8507e", section)
