"""vLLM V0 for the commands, the explorer and the harness."""
