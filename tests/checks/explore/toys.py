"""Small machines whose state graphs can be worked out by hand."""

from collections.abc import Hashable, Iterable, Iterator

import networkx as nx
from attrs import frozen
from hypothesis import strategies as st

from checks.explore.model import Transition


@frozen
class Counter:
    """Counts from 0 to `limit`, one fair step at a time; with `wraps` on and on."""

    limit: int
    wraps: bool = False

    def initial(self) -> Iterable[int]:
        return [0]

    def successors(self, state: int) -> Iterable[Transition[int]]:
        if state < self.limit:
            yield Transition("inc", state + 1, record=state, fair=True)
        elif self.wraps:
            yield Transition("wrap, to 0", 0, fair=True)

    def canonical(self, state: int) -> Hashable:
        return state

    def unfinished(self, state: int) -> bool:
        return False


IDLE, TRYING, CRITICAL = 0, 1, 2
Processes = tuple[int, ...]


@frozen
class Mutex:
    """Interchangeable processes that `try`, `enter` one at a time (if `locked`) and `leave`."""

    processes: int
    locked: bool = True
    symmetric: bool = False
    enter_is_fair: bool = True

    def initial(self) -> Iterable[Processes]:
        return [(IDLE,) * self.processes]

    def successors(self, state: Processes) -> Iterable[Transition[Processes]]:
        for number, phase in enumerate(state):
            if phase == IDLE:
                yield Transition(f"try {number}", _with(state, number, TRYING))
            elif phase == CRITICAL:
                yield Transition(f"leave {number}", _with(state, number, IDLE), fair=True)
            elif not self.locked or CRITICAL not in state:
                after = _with(state, number, CRITICAL)
                yield Transition(f"enter {number}", after, fair=self.enter_is_fair)

    def canonical(self, state: Processes) -> Hashable:
        return tuple(sorted(state)) if self.symmetric else state

    def unfinished(self, state: Processes) -> bool:
        return TRYING in state


@frozen
class Philosophers:
    """Each takes the left fork, then the right one, eats, and puts both back."""

    seats: int
    symmetric: bool = False

    def initial(self) -> Iterable[Processes]:
        return [(0,) * self.seats]

    def successors(self, state: Processes) -> Iterable[Transition[Processes]]:
        for seat, forks in enumerate(state):
            free = state[seat - 1] < 2 if forks == 0 else state[(seat + 1) % self.seats] == 0
            if forks == 2:
                yield Transition(f"rest {seat}", _with(state, seat, 0), fair=True)
            elif free:
                yield Transition(f"take {seat}", _with(state, seat, forks + 1), fair=True)

    def canonical(self, state: Processes) -> Hashable:
        turns = (state[seat:] + state[:seat] for seat in range(self.seats))
        return min(turns) if self.symmetric else state

    def unfinished(self, state: Processes) -> bool:
        return any(state)


@frozen
class Queue:
    """What arrives waits or, in a full queue that leaks, gets lost.

    The state is (arrived, waiting, served).
    """

    arrivals: int
    room: int
    leaks: bool = True

    def initial(self) -> Iterable[tuple[int, int, int]]:
        return [(0, 0, 0)]

    def successors(self, state: tuple[int, int, int]) -> Iterable[Transition[tuple[int, int, int]]]:
        arrived, waiting, served = state
        if arrived < self.arrivals and (self.leaks or waiting < self.room):
            yield Transition("arrive", (arrived + 1, min(waiting + 1, self.room), served))
        if waiting:
            yield Transition("serve", (arrived, waiting - 1, served + 1), fair=True)

    def canonical(self, state: tuple[int, int, int]) -> Hashable:
        return state

    def unfinished(self, state: tuple[int, int, int]) -> bool:
        return state[1] > 0


@frozen
class Polite:
    """Two people at a door: the state is a side to go, or "through"; `bow` changes the side."""

    bowing_is_fair: bool
    symmetric: bool = False

    def initial(self) -> Iterable[str]:
        return ["left"]

    def successors(self, state: str) -> Iterable[Transition[str]]:
        if state != "through":
            other = "right" if state == "left" else "left"
            yield Transition(f"bow {state}", other, fair=self.bowing_is_fair)
            yield Transition(f"go {state}", "through", fair=True)

    def canonical(self, state: str) -> Hashable:
        return state == "through" if self.symmetric else state

    def unfinished(self, state: str) -> bool:
        return state != "through"


Edge = tuple[int, int, int]  # source, target, class of fairness


@frozen
class Drawn:
    """A machine given by its edges; `stuck` are the unfinished states."""

    edges: tuple[Edge, ...]
    starts: tuple[int, ...] = (0,)
    stuck: frozenset[int] = frozenset()

    def initial(self) -> Iterable[int]:
        return self.starts

    def successors(self, state: int) -> Iterator[Transition[int]]:
        for number, (source, target, fair) in enumerate(self.edges):
            if source == state:
                yield Transition(f"edge {number}", target, fair=fair)

    def canonical(self, state: int) -> Hashable:
        return state

    def unfinished(self, state: int) -> bool:
        return state in self.stuck

    def graph(self) -> "nx.DiGraph[int]":
        """The reachable part."""
        whole: nx.DiGraph[int] = nx.DiGraph()
        whole.add_nodes_from(self.starts)
        whole.add_edges_from((source, target) for source, target, _ in self.edges)
        reached = set(self.starts).union(*(nx.descendants(whole, start) for start in self.starts))
        return nx.DiGraph(whole.subgraph(reached))


def drawn(states: int = 6, edges: int = 14) -> st.SearchStrategy[Drawn]:
    """Any small graph, with parallel edges, self-loops and several initial states."""
    state = st.integers(0, states - 1)
    return st.builds(
        Drawn,
        edges=st.lists(st.tuples(state, state, st.integers(0, 2)), max_size=edges).map(tuple),
        starts=st.lists(state, min_size=1, max_size=3).map(tuple),
        stuck=st.frozensets(state),
    )


def _with(state: Processes, number: int, phase: int) -> Processes:
    return (*state[:number], phase, *state[number + 1 :])
