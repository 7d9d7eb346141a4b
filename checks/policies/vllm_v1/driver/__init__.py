"""How drivers of vLLM V1 are held against its machine."""
