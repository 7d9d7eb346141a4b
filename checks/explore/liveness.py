"""`Eventually` properties on the finished state graph, under weak fairness.

A run refutes the property if it comes through a *pending* state (trigger, no goal), never meets the
goal from there on, and is fair. On a finite graph such a run exists exactly if, from a pending
state and through states without goal, one can reach

- a *resting* state, where no fair action is possible: the run may stay there for ever, because it
  ended or because nothing forces the environment to go on, or
- a strongly connected component with a fair edge inside: the run goes round and takes it each
  time.

A component whose fair edges all lead out, with one possible in each of its states, is no
refutation: to stay in it would be to refuse a fair action for ever. One with a resting state is
the first case.
"""

from array import array
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TypeAlias

from attrs import Factory, define, frozen

TRIGGER, GOAL = 1, 2  # bits of a state's mark

Node: TypeAlias = tuple[int, bool]
Move: TypeAlias = tuple[int, Node]


def packed(target: int, fair: bool) -> int:
    """An edge as one integer."""
    return target << 1 | fair


@define
class Edges:
    """The edges of the state graph, four bytes each: target state and fairness, by source state."""

    begins: "array[int]" = Factory(lambda: array("Q"))
    sizes: "array[int]" = Factory(lambda: array("i"))  # -1: not expanded
    targets: "array[int]" = Factory(lambda: array("I"))

    def add_state(self) -> None:
        """Make room for the next state, which is not expanded yet."""
        self.begins.append(0)
        self.sizes.append(-1)

    def expand(self, index: int, row: Sequence[int]) -> None:
        """Keep the packed edges that leave a state."""
        self.begins[index] = len(self.targets)
        self.sizes[index] = len(row)
        self.targets.extend(row)

    def expanded(self, index: int) -> bool:
        """Whether the state's edges are known."""
        return self.sizes[index] >= 0

    def row(self, index: int) -> "array[int]":
        """The packed edges that leave a state; none while it is not expanded."""
        begin = self.begins[index]
        return self.targets[begin : begin + max(self.sizes[index], 0)]


@frozen
class Lasso:
    """A refuting run, as packed edges from an initial state; an empty cycle means to stay."""

    initial: int
    prefix: tuple[int, ...]
    cycle: tuple[int, ...]


def refutation(edges: Edges, marks: bytearray, initial: Iterable[int]) -> Lasso | None:
    """The refuting run with the shortest way to its cycle, and the shortest cycle there.

    `marks` has the bits `TRIGGER` and `GOAL` of each state. States that were not expanded are
    left out: what is found on an unfinished graph is a refutation, nothing found is no proof.
    """
    region = _region(edges, marks)
    resting = {index for index in region if _rests(edges, index)}
    rounds = _fair_components(edges, region)
    if not resting and not rounds:
        return None
    start, prefix, (entry, _) = _prefix(edges, marks, initial, resting | rounds.keys())
    cycle = () if entry in resting else _fair_cycle(edges, rounds[entry], entry)
    return Lasso(start, prefix, cycle)


def _is_pending(mark: int) -> bool:
    return mark & (TRIGGER | GOAL) == TRIGGER


def _rests(edges: Edges, index: int) -> bool:
    return edges.expanded(index) and not any(edge & 1 for edge in edges.row(index))


def _region(edges: Edges, marks: bytearray) -> list[int]:
    """All states without goal that some run reaches from a pending state without meeting one."""
    stack = [index for index, mark in enumerate(marks) if _is_pending(mark)]
    inside = bytearray(len(marks))
    for index in stack:
        inside[index] = 1
    for index in stack:  # grows while it is read
        for edge in edges.row(index):
            target = edge >> 1
            if not inside[target] and not marks[target] & GOAL:
                inside[target] = 1
                stack.append(target)
    return stack


def _fair_components(edges: Edges, region: Sequence[int]) -> dict[int, set[int]]:
    """The strongly connected components of the region with a fair edge inside, by state."""
    import networkx as nx

    core = _core(edges, region)
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_edges_from(
        (source, edge >> 1) for source in core for edge in edges.row(source) if edge >> 1 in core
    )
    found = {}
    for component in nx.strongly_connected_components(graph):
        if any(edge & 1 and edge >> 1 in component for i in component for edge in edges.row(i)):
            found.update(dict.fromkeys(component, component))
    return found


def _core(edges: Edges, region: Sequence[int]) -> set[int]:
    """The region without most of the states from which every run must leave it.

    No cycle is lost. A graph for `networkx` takes a kilobyte a state, and the workloads that are
    explored end, so nearly nothing is left to hand to it. Backwards in order of discovery one pass
    follows long chains of dead ends; passes go on while they remove an eighth of what there is.
    """
    core, order = set(region), sorted(region, reverse=True)
    while order:
        for index in order:
            if not any(edge >> 1 in core for edge in edges.row(index)):
                core.discard(index)
        if len(core) * 8 > len(order) * 7:
            break
        order = [index for index in order if index in core]
    return core


def _prefix(
    edges: Edges, marks: bytearray, initial: Iterable[int], entries: Container[int]
) -> tuple[int, tuple[int, ...], Node]:
    """The shortest way to an entry through a pending state; a node is (state, has been pending)."""

    def nodes(index: int) -> list[Node]:
        return [(index, False), (index, True)] if _is_pending(marks[index]) else [(index, False)]

    def moves(node: Node) -> Iterator[Move]:
        for edge in edges.row(node[0]):
            if not node[1]:
                yield from ((edge, after) for after in nodes(edge >> 1))
            elif not marks[edge >> 1] & GOAL:
                yield edge, (edge >> 1, True)

    starts = [node for index in initial for node in nodes(index)]
    start, way, end = _shortest(starts, moves, lambda node: node[1] and node[0] in entries)
    return start[0], way, end


def _fair_cycle(edges: Edges, component: set[int], entry: int) -> tuple[int, ...]:
    """The shortest cycle with a fair edge through a state; a node is (state, edge was taken)."""

    def moves(node: Node) -> Iterator[Move]:
        for edge in edges.row(node[0]):
            if edge >> 1 in component:
                yield edge, (edge >> 1, node[1] or bool(edge & 1))

    return _shortest([(entry, False)], moves, lambda node: node == (entry, True))[1]


def _shortest(
    starts: Iterable[Node],
    moves: Callable[[Node], Iterable[Move]],
    wanted: Callable[[Node], bool],
) -> tuple[Node, tuple[int, ...], Node]:
    """Breadth-first: where the way starts, its edges, and the wanted node that it ends in.

    Raises:
        AssertionError: there is no way; the callers know that there is one.
    """
    came_from: dict[Node, tuple[int, Node] | None] = dict.fromkeys(starts)
    queue = deque(came_from)
    while queue:
        node = queue.popleft()
        if wanted(node):
            return *_way(came_from, node), node
        for edge, target in moves(node):
            if target not in came_from:
                came_from[target] = (edge, node)
                queue.append(target)
    raise AssertionError("no way to a node that was found reachable")


def _way(
    came_from: dict[Node, tuple[int, Node] | None], node: Node
) -> tuple[Node, tuple[int, ...]]:
    way = []
    while (step := came_from[node]) is not None:
        edge, node = step
        way.append(edge)
    return node, tuple(reversed(way))
