"""Every rule of the nano-vLLM text once, by its chapters; importing this fills the registry."""

from spec.rules.nano_vllm import admission, blocks, decode, lifecycle, preemption, prefix
from spec.rules.nano_vllm.registry import RULES, applicable

__all__ = [
    "RULES",
    "admission",
    "applicable",
    "blocks",
    "decode",
    "lifecycle",
    "preemption",
    "prefix",
]
