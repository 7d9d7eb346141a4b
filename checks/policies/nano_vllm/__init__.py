"""nano-vLLM as the commands, the explorer and the harness know it."""
