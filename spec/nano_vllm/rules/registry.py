"""The registry of nano-vLLM's rules, and their sources."""

from functools import partial
from typing import TypeAlias

from spec.core import rule
from spec.core.rule import Registry, Source
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
newest = partial(Source, "nano-vllm bb823b3")  # what the later commit does otherwise
