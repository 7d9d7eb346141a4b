"""The claims of nano-vLLM."""

from checks.registry import Claims
from spec.nano_vllm.config import NanoVllmConfig, refuse_unservable
from spec.nano_vllm.records import Context, State, Step, context_of
from spec.nano_vllm.rules import NANO_VLLM as RULES

CLAIMS: Claims[NanoVllmConfig, Context, State, Step] = Claims(
    config=NanoVllmConfig,
    registry=RULES,
    step=Step,
    context_of=context_of,
    refuse_unservable=refuse_unservable,
)
