"""Parts that the engines and devices of all policies share: clock, metrics, tensors, model."""
