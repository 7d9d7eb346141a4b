"""The claims of vLLM V0."""

from checks.registry import Claims
from spec.vllm_v0.config import VllmV0Config, refuse_unservable
from spec.vllm_v0.records import Context, State, Step, context_of
from spec.vllm_v0.rules import VLLM_V0 as RULES

CLAIMS: Claims[VllmV0Config, Context, State, Step] = Claims(
    config=VllmV0Config,
    registry=RULES,
    step=Step,
    context_of=context_of,
    refuse_unservable=refuse_unservable,
)
