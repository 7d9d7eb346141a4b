"""The store of a search: states, their parents, and counts."""

from array import array
from collections import deque
from collections.abc import Hashable
from typing import Generic

from attrs import Factory, define

from checks.explore.checkpoint import Piece
from checks.explore.liveness import Edges
from checks.explore.model import StateT, Violation
from checks.explore.threads import Threads


def _unsigned() -> "array[int]":
    return array("I")


@define
class Store(Generic[StateT]):
    """The states found so far and the counts.

    States are numbered in the order of discovery. `seen` maps the canonical value of a state to its
    index, by equality of values, not of hashes. The arrays hold, by index: the parent, from which
    the state was found (itself if initial), the position of the edge among the parent's successors,
    and the depth. The states of a path are not stored but computed again.
    """

    seen: dict[Hashable, int] = Factory(dict)
    parents: "array[int]" = Factory(_unsigned)
    ordinals: "array[int]" = Factory(_unsigned)
    depths: "array[int]" = Factory(_unsigned)
    frontier: deque[tuple[int, StateT]] = Factory(deque)
    edges: Edges | None = None  # only kept when a property needs the whole graph
    threads: Threads[StateT] | None = None  # only where a request must be followed through it
    marks: list[bytearray] = Factory(list)  # by `Eventually` property, then by state
    depth: int = 0  # the largest of `depths`
    transitions: int = 0
    deadlocks: int = 0
    peak_queue: int = 0
    seconds: float = 0.0
    labels: dict[str, int] = Factory(dict)
    sightings: dict[str, tuple[int, int]] = Factory(dict)  # of witnesses: edges, least depth
    violations: dict[str, Violation[StateT]] = Factory(dict)
    broken: dict[str, int] = Factory(dict)  # by rule, the state on whose expansion it was violated
    pieces: list[Piece] = Factory(list)

    def add(self, parent: int, ordinal: int, depth: int) -> None:
        """Store the parent and the depth of the state that was just added to `seen`."""
        self.parents.append(parent)
        self.ordinals.append(ordinal)
        self.depths.append(depth)
        self.depth = max(self.depth, depth)
        if self.edges is not None:
            self.edges.add_state()

    def route(self, index: int) -> tuple[int, list[int]]:
        """The path to a state: the position of the initial state, then of each successor."""
        ordinals = []
        while self.parents[index] != index:
            ordinals.append(self.ordinals[index])
            index = self.parents[index]
        return self.ordinals[index], ordinals[::-1]
