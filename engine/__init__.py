"""The fast implementation: schedulers, block managers, simulated devices, workloads, metrics."""
