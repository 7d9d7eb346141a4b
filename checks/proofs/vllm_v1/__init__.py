"""Obligations about the budget, the blocks and the drafts of vLLM V1."""
