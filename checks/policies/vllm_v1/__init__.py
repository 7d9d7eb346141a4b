"""vLLM V1 as the commands, the explorer and the harness know it."""
