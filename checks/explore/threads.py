"""Follow a request through a graph in which states are merged up to the names of requests.

A merged state represents several states that differ in the names of equal requests, and the target
of an edge may be stored under other names. A property of one request is therefore judged on pairs
of a state and the place of the request in it. An edge leads from a pair to the pair of the next
state and the place of the same request there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic

from attrs import define, field

from checks.explore.liveness import Edges, packed, unpacked
from checks.explore.model import Eventually, StateT


@define
class Threads(Generic[StateT]):
    """The places of requests in each state of a graph, and at the end of each edge.

    `places`: as in `Eventually`. A row has the place of each request, in the order of their ids.
    `in_states` has a row for each state, `edge_ends` one for each element of `Edges.targets`.
    """

    places: Callable[[StateT], Mapping[str, int]]
    requests: tuple[str, ...] = ()
    in_states: list[bytes] = field(factory=list)
    edge_ends: list[bytes] = field(factory=list)
    _rows: dict[bytes, bytes] = field(factory=dict)  # equal rows are kept once

    def add_state(self, state: StateT) -> None:
        """Add the next state, as the search stores it."""
        self.in_states.append(self._row(state))

    def add_edge(self, after: StateT) -> None:
        """Add the next edge by its target state, with the request names of its source state."""
        self.edge_ends.append(self._row(after))

    def _row(self, state: StateT) -> bytes:
        places = self.places(state)
        self.requests = self.requests or tuple(sorted(places))
        row = bytes(places[request] for request in self.requests)
        return self._rows.setdefault(row, row)

    def pair(self, index: int, place: int) -> int:
        """The index of a pair of a state and a place."""
        return index * len(self.requests) + place

    def pairs(self, edges: Edges) -> Edges:
        """The graph of all pairs."""
        graph = Edges()
        for _ in range(len(self.in_states) * len(self.requests)):
            graph.add_state()
        for index, row in enumerate(self.in_states):
            if edges.expanded(index):
                begin = edges.begins[index]
                for place in {*row}:
                    leaving = [
                        packed(self.pair(target, self.edge_ends[number][request]), fair)
                        for number, edge in enumerate(edges.row(index), begin)
                        for target, fair in [unpacked(edge)]
                        for request, own_place in enumerate(row)
                        if own_place == place
                    ]
                    graph.expand(self.pair(index, place), leaving)
        return graph

    def marks(self, of_requests: Mapping[str, Sequence[int]]) -> bytearray:
        """The mark of each pair, from the marks of the states for each request."""
        pair_marks = bytearray(len(self.in_states) * len(self.requests))
        for index, row in enumerate(self.in_states):
            for request, place in zip(self.requests, row, strict=True):
                pair_marks[self.pair(index, place)] = of_requests[request][index]
        return pair_marks


def request_threads(eventually: Iterable[Eventually[StateT]]) -> Threads[StateT] | None:
    """Threads for the requests of these properties; None if the model renames no request."""
    places = next((rule.places for rule in eventually if rule.places is not None), None)
    return None if places is None else Threads(places)
