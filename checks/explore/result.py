"""What an exploration found."""

from enum import Enum
from typing import Generic

from attrs import frozen

from checks.explore.checkpoint import Checkpoint
from checks.explore.model import Sightings, StateT, Violation


class Outcome(Enum):
    """The three answers; `HOLDS` is only said when every reachable state was expanded."""

    HOLDS = "holds"
    VIOLATED = "violated"
    INCOMPLETE = "incomplete"


@frozen
class Progress:
    """How far a search is; `queue` counts the states that wait for expansion."""

    states: int
    transitions: int
    depth: int
    queue: int
    states_per_second: float


@frozen
class Result(Generic[StateT]):
    """The outcome and the exact counts of one search.

    `states` are counted up to symmetry, `transitions` are the edges generated from distinct
    states, `depth` is the largest number of steps to a state (breadth-first: of shortest ones),
    `actions` counts edges by the first word of their label. `stopped_by` names what ended the
    search before every state was expanded: a field of `Bounds`, "stop", or "violation".
    `seconds` and `states_per_second` include the time before a resume, not that of taking the same
    steps again. `bytes_per_state` is what the explorer keeps for a state, measured as
    `checks.explore.memory` says. `by_depth`: states by the number of steps to them.
    """

    outcome: Outcome
    stopped_by: str | None
    states: int
    transitions: int
    depth: int
    deadlocks: int
    violations: tuple[Violation[StateT], ...]
    witnesses: dict[str, Sightings]
    actions: dict[str, int]
    peak_queue: int
    seconds: float
    bytes_per_state: float
    checkpoint: Checkpoint | None
    by_depth: tuple[int, ...] = ()

    @property
    def states_per_second(self) -> float:
        """Distinct states found per second of wall-clock time."""
        return self.states / self.seconds if self.seconds else 0.0
