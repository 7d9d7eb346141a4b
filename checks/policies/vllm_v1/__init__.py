"""vllm_v1."""
