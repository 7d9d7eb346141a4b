"""Proofs about nano-vLLM."""

MODULES = ("blocks", "admission", "any_prefill")
