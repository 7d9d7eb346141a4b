"""nano-vLLM: configuration, formulas, records and rules."""
