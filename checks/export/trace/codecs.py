"""How the steps and states of each policy are written as JSON values, checked, and read back."""

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from checks.export.trace import decoding, encoding, lines
from checks.export.trace.encoding import Json
from checks.export.trace.shapes import Check
from checks.policies.nano_vllm import codec as nano_vllm
from checks.policies.vllm_v1 import codec as vllm_v1
from spec.core.configuration import PolicyConfig
from spec.nano_vllm.config import NanoVllmConfig
from spec.spyre.config import SpyreConfig
from spec.vllm_v1.config import VllmV1Config


@frozen(kw_only=True)
class Codec:
    """Steps and states of one policy; their classes differ from policy to policy.

    `step_as_json` takes a step, what is past and `full`; `step_from_json` a checked line, the state
    that the step before left and the requests by id. `full_step` and `state` check.
    """

    step_as_json: Callable[..., Json]
    step_from_json: Callable[..., Any]
    state_as_json: Callable[[Any], Json]
    state_from_json: Callable[..., Any]
    full_step: Check
    state: Check


_SPYRE = Codec(
    step_as_json=encoding.step_as_json,
    step_from_json=decoding.step_from_json,
    state_as_json=encoding.state_as_json,
    state_from_json=decoding.state_from_json,
    full_step=lines.FULL_STEP,
    state=lines.STATE,
)
_CODECS: Mapping[type[PolicyConfig], Codec] = {
    SpyreConfig: _SPYRE,
    NanoVllmConfig: Codec(
        step_as_json=nano_vllm.step_as_json,
        step_from_json=nano_vllm.step_from_json,
        state_as_json=nano_vllm.state_as_json,
        state_from_json=nano_vllm.state_from_json,
        full_step=lines.FULL_STEP,
        state=lines.STATE,
    ),
    VllmV1Config: Codec(
        step_as_json=vllm_v1.step_as_json,
        step_from_json=vllm_v1.step_from_json,
        state_as_json=vllm_v1.state_as_json,
        state_from_json=vllm_v1.state_from_json,
        full_step=vllm_v1.FULL_STEP,
        state=vllm_v1.STATE,
    ),
}


def codec_of(config: PolicyConfig) -> Codec:
    """The codec of the policy that is configured."""
    return _CODECS[type(config)]
