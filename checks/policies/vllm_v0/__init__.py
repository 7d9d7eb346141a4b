"""vLLM V0 as the harness knows it."""
