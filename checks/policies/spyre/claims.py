"""The claims of Spyre, and the environment variables of its plugin."""

from collections.abc import Mapping

from checks.registry import Claims
from spec.spyre.config import SpyreConfig, refuse_unservable
from spec.spyre.records import Context, Step
from spec.spyre.rules import SPYRE as RULES
from spec.spyre.state import State

# Environment variables of the production plugin, sendnn-inference, and the keys that they set; a
# switch is 0 or not 0.
_VARIABLES = {
    "SENDNN_INFERENCE_CP_INTERLEAVE_STEPS": "interleave",
    "SENDNN_INFERENCE_PAUSING_ENABLED": "pausing",
    "SENDNN_INFERENCE_LONG_OUT_PRIO": "long_output_first",
    "VLLM_DT_MAX_BATCH_TKV_LIMIT": "max_batch_tkv_limit",
}


def _other_size(settings: Mapping[str, str]) -> dict[str, str]:
    """A fitting block size if only the chunk size is given, and the reverse."""
    if "block_size" in settings and "chunk_size" not in settings:
        return {"chunk_size": settings["block_size"]}
    if "chunk_size" in settings and "block_size" not in settings:
        return {"block_size": "1"}
    return {}


CLAIMS: Claims[SpyreConfig, Context, State, Step] = Claims(
    config=SpyreConfig,
    registry=RULES,
    step=Step,
    refuse_unservable=refuse_unservable,
    variables=_VARIABLES,
    implied=_other_size,
)
