"""Every rule of the nano-vLLM text once, by chapter; importing this fills their registry."""

from spec.rules.nano_vllm import admission, blocks, decode, lifecycle, preemption, prefix
from spec.rules.nano_vllm.registry import NANO_VLLM, REGISTRY, Rule, applicable

__all__ = [
    "NANO_VLLM",
    "REGISTRY",
    "Rule",
    "admission",
    "applicable",
    "blocks",
    "decode",
    "lifecycle",
    "preemption",
    "prefix",
]
