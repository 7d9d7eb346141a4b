"""vLLM V1 for the commands, the explorer and the harness."""
