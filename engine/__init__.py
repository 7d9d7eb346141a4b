"""The fast one: scheduler, block manager, simulated device, workloads and metrics."""
