"""What is proven about vLLM V1."""

MODULES = ("budget", "blocks", "drafts")
