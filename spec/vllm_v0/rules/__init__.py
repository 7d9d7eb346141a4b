"""Every rule of vLLM V0 once, by what it is about; importing this fills its registry."""

from spec.vllm_v0.rules import (  # noqa: F401
    admission,
    blocks,
    budget,
    chunks,
    lifecycle,
    lookahead,
    order,
    preemption,
    prefix,
    priority,
    progress,
    sequences,
    swapping,
)
from spec.vllm_v0.rules.registry import REGISTRY, VLLM_V0, Rule, applicable

__all__ = ["REGISTRY", "VLLM_V0", "Rule", "applicable"]
