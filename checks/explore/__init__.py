"""The explorer: every reachable state of a machine, with properties, witnesses and exact counts.

A machine is a `Model`; `explore` checks `Always`, `OnStep` and `Eventually` properties of it and
returns a `Result` with shortest counterexamples. Nothing in here knows what a scheduler is.
"""

from checks.explore.bounds import Bounds
from checks.explore.checkpoint import Checkpoint, CheckpointError, load, save
from checks.explore.examine import DEADLOCK, MACHINE_ERROR
from checks.explore.graph import MachineError, state_graph
from checks.explore.model import (
    Always,
    Counterexample,
    Eventually,
    Model,
    OnStep,
    Property,
    Transition,
    Violation,
    Witness,
)
from checks.explore.replay import UnrepeatableError
from checks.explore.result import Outcome, Progress, Result, Sightings
from checks.explore.search import Order, explore

__all__ = [
    "DEADLOCK",
    "MACHINE_ERROR",
    "Always",
    "Bounds",
    "Checkpoint",
    "CheckpointError",
    "Counterexample",
    "Eventually",
    "MachineError",
    "Model",
    "OnStep",
    "Order",
    "Outcome",
    "Progress",
    "Property",
    "Result",
    "Sightings",
    "Transition",
    "UnrepeatableError",
    "Violation",
    "Witness",
    "explore",
    "load",
    "save",
    "state_graph",
]
