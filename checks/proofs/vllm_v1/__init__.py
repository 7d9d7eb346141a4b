"""Proofs about vLLM V1."""

MODULES = ("budget", "any_budget", "blocks", "drafts")
