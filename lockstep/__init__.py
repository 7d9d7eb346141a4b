"""Lockstep as a library and pytest plugin.

- `api`: read, step, judge, explore and conform from Python.
- `pytest_plugin`: the fixture `lockstep`, and findings as tests.
- `vllm`: records what the scheduler of a vLLM server decides, for `lockstep check`.
- `strategies`, `testing`: Hypothesis strategies, and a state machine that drives a scheduler.

In a checkout these modules are beside the folders `spec`, `reference`, `engine` and `checks`; an
installation has this one package with the folders inside it.
"""
