"""Differential fuzzing: a target and the reference, step by step, until both are idle."""
