"""What every policy's engine and device is built from: clock, metrics, tensors, model."""
