"""vLLM V0: sequence groups, two ways to preempt, two strategies; rules of its text."""
