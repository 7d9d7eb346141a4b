"""Lockstep in other people's projects.

- `api`: read, step, judge, explore and conform from Python.
- `pytest_plugin`: the fixture `lockstep`, and findings as tests.
- `strategies`, `testing`: Hypothesis strategies, and a state machine that drives a scheduler.

In a checkout these modules stand next to the rooms, `spec`, `reference`, `engine` and `checks`;
what is installed is this one package with the rooms inside it.
"""
