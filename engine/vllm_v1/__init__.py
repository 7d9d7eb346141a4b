"""The vLLM V1 scheduler as a server runs it, and what it gives the paged device."""
