"""Every rule of vLLM V1 once, by section of its text; importing this fills its registry."""

from spec.vllm_v1.rules import (  # noqa: F401
    blocks,
    budget,
    encoding,
    environment,
    flights,
    grammars,
    group_pool,
    groups,
    lifecycle,
    loading,
    order,
    preemption,
    prefix,
    progress,
    reading,
    remembered,
    sessions,
    speculation,
)
from spec.vllm_v1.rules.registry import REGISTRY, VLLM_V1, Rule, applicable

__all__ = ["REGISTRY", "VLLM_V1", "Rule", "applicable"]
