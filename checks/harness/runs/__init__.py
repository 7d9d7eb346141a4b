"""Runs of a workload on an engine or a reference, judged as they go."""
