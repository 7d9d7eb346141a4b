"""The claims of vLLM V1."""

from checks.registry import Claims
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import Context, State, Step, context_of
from spec.vllm_v1.requests import refuse_unservable
from spec.vllm_v1.rules import VLLM_V1 as RULES

CLAIMS: Claims[VllmV1Config, Context, State, Step] = Claims(
    config=VllmV1Config,
    registry=RULES,
    step=Step,
    context_of=context_of,
    refuse_unservable=refuse_unservable,
)
