"""The nano-vLLM engine: scheduler, block manager, serving loop, observer."""
