"""nano_vllm."""
