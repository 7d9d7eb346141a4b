"""How drivers of nano-vLLM are held against its machine."""
