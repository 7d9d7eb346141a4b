"""What is proven about nano-vLLM."""

MODULES = ("blocks", "admission", "any_prefill")
