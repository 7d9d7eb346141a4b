"""Follow a request through a graph in which states are merged up to the names of requests.

A merged state stands for several that differ in which of some requests is which, and an edge may
lead to a state that was kept under other names. So a property of one request is not asked of merged
states but of pairs: a state, and the place in it where the request stands. An edge leads from a
pair to the pair of the next state and the place that the same request has there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic

from attrs import define, field

from checks.explore.liveness import Edges, packed, unpacked
from checks.explore.model import Eventually, StateT


@define
class Threads(Generic[StateT]):
    """The places of requests in each state of a graph, and behind each of its edges.

    `places`: as `Eventually` has it. Rows have the place of each request in the order of their ids;
    `behind_edges` has one for each element of `Edges.targets`.
    """

    places: Callable[[StateT], Mapping[str, int]]
    requests: tuple[str, ...] = ()
    in_states: list[bytes] = field(factory=list)
    behind_edges: list[bytes] = field(factory=list)
    _known: dict[bytes, bytes] = field(factory=dict)  # equal rows are kept once

    def add_state(self, state: StateT) -> None:
        """Note the next state as the search keeps it."""
        self.in_states.append(self._row(state))

    def add_edge(self, after: StateT) -> None:
        """Note the next edge by the state that it leads to, with the names of where it begins."""
        self.behind_edges.append(self._row(after))

    def _row(self, state: StateT) -> bytes:
        places = self.places(state)
        self.requests = self.requests or tuple(sorted(places))
        row = bytes(places[request] for request in self.requests)
        return self._known.setdefault(row, row)

    def pair(self, index: int, place: int) -> int:
        """The index of a pair of a state and a place."""
        return index * len(self.requests) + place

    def pairs(self, edges: Edges) -> Edges:
        """The graph of all pairs."""
        found = Edges()
        for _ in range(len(self.in_states) * len(self.requests)):
            found.add_state()
        for index, row in enumerate(self.in_states):
            if edges.expanded(index):
                begin = edges.begins[index]
                for place in {*row}:
                    leaving = [
                        packed(self.pair(target, self.behind_edges[number][request]), fair)
                        for number, edge in enumerate(edges.row(index), begin)
                        for target, fair in [unpacked(edge)]
                        for request, stands_at in enumerate(row)
                        if stands_at == place
                    ]
                    found.expand(self.pair(index, place), leaving)
        return found

    def marks(self, of_requests: Mapping[str, Sequence[int]]) -> bytearray:
        """The mark of each pair, given those of states for each request."""
        found = bytearray(len(self.in_states) * len(self.requests))
        for index, row in enumerate(self.in_states):
            for request, place in zip(self.requests, row, strict=True):
                found[self.pair(index, place)] = of_requests[request][index]
        return found


def threads_of(eventually: Iterable[Eventually[StateT]]) -> Threads[StateT] | None:
    """What follows the requests that these properties are about; None if no request is renamed."""
    places = next((rule.places for rule in eventually if rule.places is not None), None)
    return None if places is None else Threads(places)
