"""Results of an exploration: outcome, counts, violations."""

from enum import Enum
from typing import Generic

from attrs import frozen

from checks.explore.checkpoint import Checkpoint
from checks.explore.model import Sightings, StateT, Violation


class Outcome(Enum):
    """The three outcomes; `HOLDS` only if every reachable state was expanded."""

    HOLDS = "holds"
    VIOLATED = "violated"
    INCOMPLETE = "incomplete"


@frozen
class Progress:
    """The progress of a search; `queue`: states not expanded yet.

    `compiling`: the compiled machine is made ready beside it.
    """

    states: int
    transitions: int
    depth: int
    queue: int
    states_per_second: float
    compiling: bool = False


@frozen
class Result(Generic[StateT]):
    """The outcome and the exact counts of one search.

    `states` are counted up to symmetry. `transitions`: edges from distinct states. `depth`: the
    largest number of steps to a state (breadth-first: of shortest paths). `actions`: edges by the
    first word of their label. `stopped_by`: why the search ended before every state was expanded:
    a field of `Bounds`, "stop", or "violation"; else None. `seconds` and `states_per_second`
    include the time before a resume, not the time of repeating its steps. `bytes_per_state`: bytes
    kept for a state, measured as in `checks.explore.memory`. `by_depth`: number of states by depth.
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
