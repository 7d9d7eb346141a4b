"""What a scheduler is between two steps, and what a step did, in the words of the rules.

The engine keeps arrays; rules, traces and comparisons speak of `spec.spyre.state.State` and
`spec.spyre.records.Step`. An observer makes them and shares with its last state whatever has not
changed since. Who does not observe pays nothing.
"""

from engine.spyre.observing.states import Observer, snapshot
from engine.spyre.observing.steps import StepObserver

__all__ = ["Observer", "StepObserver", "snapshot"]
