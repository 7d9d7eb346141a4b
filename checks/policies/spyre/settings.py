"""How a Spyre configuration is given from outside, beyond its keys."""

from collections.abc import Mapping

# Environment variables of the production plugin, sendnn-inference, and the keys that they set; a
# switch is 0 or not 0.
VARIABLES = {
    "SENDNN_INFERENCE_CP_INTERLEAVE_STEPS": "interleave",
    "SENDNN_INFERENCE_PAUSING_ENABLED": "pausing",
    "SENDNN_INFERENCE_LONG_OUT_PRIO": "long_output_first",
    "VLLM_DT_MAX_BATCH_TKV_LIMIT": "max_batch_tkv_limit",
}


def other_size(given: Mapping[str, str]) -> dict[str, str]:
    """A value for the one of block and chunk size that is not given, so that they go together."""
    if "block_size" in given and "chunk_size" not in given:
        return {"chunk_size": given["block_size"]}
    if "chunk_size" in given and "block_size" not in given:
        return {"block_size": "1"}
    return {}
