"""What a scheduler is between two steps, and what a step did, in the words of the rules.

The engine keeps arrays; rules, traces and comparisons speak of `spec.state.State` and
`spec.records.Step`. An observer makes them and shares with its last state whatever has not changed
since. Who does not observe pays nothing.
"""

from engine.observing.states import Observer, snapshot
from engine.observing.steps import StepObserver

__all__ = ["Observer", "StepObserver", "snapshot"]
