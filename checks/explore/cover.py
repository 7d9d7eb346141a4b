"""Covers of a state graph: paths from the initial state that together take every edge.

States with equal canonical values are one state of the graph, so that symmetric states are covered
once. An edge is named by its source and its place among the edges of that state.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, Generic, TypeAlias

from attrs import define, evolve, field, frozen

from checks.explore.model import Model, StateT, Transition
from reference.core.guards import GuardError

Edge: TypeAlias = tuple[int, int]
"""The index of the source, then the place among its edges."""
Path: TypeAlias = tuple[Edge, ...]
"""Edges, each from the state to which the one before leads; the first from the initial state."""

_STEP = "step"


def is_step(transition: Transition[Any]) -> bool:
    """True if the scheduler takes a step on this edge; else a client or a load acts between two."""
    return _kind(transition) == _STEP


def _kind(transition: Transition[Any]) -> str:
    return transition.action.partition(" ")[0].rstrip(",")


@frozen(eq=False)
class _Edge(Generic[StateT]):
    transition: Transition[StateT]
    target: int


@define(eq=False)
class Graph(Generic[StateT]):
    """The reachable states of a model with one initial state, and all edges between them.

    `states`: of each canonical value the state that was found first, shortest runs first. `edges`:
    of each state. `reached`: the edge by which a state was found; None for the initial state.
    """

    model: Model[StateT]
    states: list[StateT] = field(factory=list, init=False)
    edges: list[list[_Edge[StateT]]] = field(factory=list, init=False)
    reached: list[Edge | None] = field(factory=list, init=False)
    _elsewhere: dict[StateT, list[_Edge[StateT]]] = field(factory=dict, init=False)
    _indices: dict[Any, int] = field(factory=dict, init=False)

    @staticmethod
    def of(model: Model[StateT], stopped: Callable[[], bool] = lambda: False) -> "Graph[StateT]":
        """The graph of a model; where `stopped` becomes true, only a part of it."""
        graph = Graph(model)
        (initial,) = model.initial()
        graph._index(initial, None)
        for source, state in enumerate(graph.states):  # grows while it is read
            if stopped():
                break
            graph.edges.append([])
            with suppress(GuardError):  # the machine has no step here
                for place, transition in enumerate(model.successors(state)):
                    graph.edges[source].append(graph._edge(transition, (source, place)))
        return graph

    def __len__(self) -> int:
        """The number of edges."""
        return sum(map(len, self.edges))

    def __iter__(self) -> Iterator[Edge]:
        """Every edge, those near the initial state first."""
        for source, edges in enumerate(self.edges):
            yield from ((source, place) for place in range(len(edges)))

    def transition(self, edge: Edge) -> Transition[StateT]:
        """The transition of an edge, from the state of the graph."""
        return self.edges[edge[0]][edge[1]].transition

    def target(self, edge: Edge) -> int:
        """The state to which an edge leads."""
        return self.edges[edge[0]][edge[1]].target

    def transitions(self, path: Path) -> Iterator[Transition[StateT]]:
        """The transitions of a path, in states that follow on each other.

        A path leads through states that are equal to those of the graph up to symmetry. There the
        edge is taken that leads to the same state of the graph.
        """
        state = self.states[0]
        for source, place in path:
            edges = self.edges[source]
            if state is self.states[source]:
                transition = edges[place].transition
            else:
                transition = self._symmetric_edge(state, edges, place)
            yield transition
            state = transition.state

    def steps_from(self, state: int) -> Iterator[Edge]:
        """The edges of a state on which the scheduler takes a step."""
        for place, edge in enumerate(self.edges[state]):
            if is_step(edge.transition):
                yield state, place

    def _symmetric_edge(
        self, state: StateT, edges: Sequence[_Edge[StateT]], place: int
    ) -> Transition[StateT]:
        """The edge of a symmetric state that corresponds to an edge of the graph."""
        if state not in self._elsewhere:
            known = [self._edge(transition, None) for transition in self.model.successors(state)]
            self._elsewhere[state] = known

        def looks(edge: _Edge[StateT]) -> tuple[int, str]:
            return edge.target, _kind(edge.transition)

        wanted = looks(edges[place])
        rank = sum(looks(edge) == wanted for edge in edges[:place])
        return [edge for edge in self._elsewhere[state] if looks(edge) == wanted][rank].transition

    def _edge(self, transition: Transition[StateT], origin: Edge | None) -> _Edge[StateT]:
        index = self._index(transition.state, origin)
        known = self.states[index]
        if transition.state == known:  # one object, so that paths see where no symmetry is used
            transition = evolve(transition, state=known)
        return _Edge(transition, index)

    def _index(self, state: StateT, origin: Edge | None) -> int:
        index = self._indices.setdefault(self.model.canonical(state), len(self.states))
        if index == len(self.states):
            self.states.append(state)
            self.reached.append(origin)
        return index


Left: TypeAlias = dict[int, dict[int, None]]
"""Of each state the places of its edges that are still to be taken, in order."""


def cover(
    graph: Graph[Any], edges: Iterable[Edge], without: Set[Edge] = frozenset()
) -> Iterator[Path]:
    """Paths that take these edges, as far as they can be reached.

    A path leads the shortest way to the nearest state that has an edge left, and on along edges
    that are left: the long paths come first, and later ones repeat little. It ends with a step
    where one is possible: a driver shows what clients did in the step after it. `without`: edges
    that no path takes.
    """
    ways = _shortest_ways(graph, without)
    left: Left = {state: {} for state in ways}
    for source, place in edges:
        if source in left and (source, place) not in without:
            left[source][place] = None
    for state in ways:
        while left[state]:
            path = _way(ways, state)
            for source, place in path:
                left[source].pop(place, None)
            yield tuple(path + _onward(graph, state, left, without))


def _shortest_ways(graph: Graph[Any], without: Set[Edge]) -> dict[int, Edge | None]:
    """The last edge of a shortest path to each state, nearer states first."""
    ways: dict[int, Edge | None] = {0: None}
    queue = deque([0])
    while queue:
        source = queue.popleft()
        for place, edge in enumerate(graph.edges[source]):
            if edge.target not in ways and (source, place) not in without:
                ways[edge.target] = source, place
                queue.append(edge.target)
    return ways


def _way(ways: Mapping[int, Edge | None], state: int) -> list[Edge]:
    path: list[Edge] = []
    while (edge := ways[state]) is not None:
        path.append(edge)
        state = edge[0]
    return path[::-1]


def _onward(graph: Graph[Any], state: int, left: Left, without: Set[Edge]) -> list[Edge]:
    """A walk along edges that are left, over at most one other edge at a time, up to a step."""
    path: list[Edge] = []
    while (place := _next_place(graph, state, left, without)) is not None:
        left[state].pop(place, None)
        path.append((state, place))
        state = graph.target((state, place))
    while path and not is_step(graph.transition(path[-1])):
        step = next((edge for edge in graph.steps_from(state) if edge not in without), None)
        if step is None:
            break
        left[state].pop(step[1], None)
        path.append(step)
    return path


def _next_place(graph: Graph[Any], state: int, left: Left, without: Set[Edge]) -> int | None:
    """The place of an edge that is left, or of one that leads to a state with such an edge."""
    leading = (
        place
        for place in left[state] or range(len(graph.edges[state]))
        if (state, place) not in without and left[graph.target((state, place))]
    )
    return next(leading, next(iter(left[state]), None))
