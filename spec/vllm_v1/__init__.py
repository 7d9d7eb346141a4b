"""vLLM V1: configuration, formulas, records and rules."""
