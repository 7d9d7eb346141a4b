"""Obligations about the sums and blocks of nano-vLLM."""
