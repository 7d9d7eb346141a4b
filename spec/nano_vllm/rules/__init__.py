"""Every rule of the nano-vLLM text once, by chapter; importing this fills their registry."""

from spec.nano_vllm.rules import (  # noqa: F401
    admission,
    blocks,
    chunks,
    decode,
    lifecycle,
    preemption,
    prefix,
)
from spec.nano_vllm.rules.registry import NANO_VLLM, REGISTRY, Rule, applicable

__all__ = ["NANO_VLLM", "REGISTRY", "Rule", "applicable"]
