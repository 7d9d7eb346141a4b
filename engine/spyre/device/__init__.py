"""The simulated device: it takes tensors, keeps the KV cache and refuses what Spyre refuses."""
