"""The explorer: every reachable state of a machine, with properties, witnesses and exact counts.

A machine is a `Model`; `search.explore` checks `Always`, `OnStep` and `Eventually` properties of it
and returns a `Result` with shortest counterexamples. The search itself knows no scheduler.
"""
