"""`Eventually` properties on the finished state graph, under weak fairness of each kind of action.

A run refutes the property if it visits a *pending* state (trigger, no goal), never meets the goal
from there on, and is fair. Fairness is a condition for each class of actions, such as the
scheduler's steps or the loads of one request: if actions of the class stay possible, the run takes
them again and again. On a finite graph a refuting run exists exactly if, from a pending
state and through states without goal, one can reach

- a *resting* state, where no action of any class is possible: the run may stay there forever,
  because it ended or because nothing forces the environment to act, or
- a strongly connected component in which each class has an edge inside, or a state where none of
  its actions is possible: the run goes round, through such an edge or state of each class.

A component is no refutation if a class has an action in each of its states and all of them leave
the component: staying inside would refuse that class forever.
"""

from array import array
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TypeAlias

from attrs import Factory, define, frozen

from checks.explore.model import CLASSES

TRIGGER, GOAL = 1, 2  # a state's mark; where both hold, the goal counts

# Low bits of an edge, for the class of its action; the other bits suffice for the target state.
_CLASS_BITS = (CLASSES - 1).bit_length()
_CLASS = CLASSES - 1

Node: TypeAlias = tuple[int, int]
Move: TypeAlias = tuple[int, Node]


def packed(target: int, fair: int) -> int:
    """An edge as one integer; `fair`: the class of its action, 0 if it need not happen."""
    return target << _CLASS_BITS | fair


def unpacked(edge: int) -> tuple[int, int]:
    """Target state and class of an edge."""
    return edge >> _CLASS_BITS, edge & _CLASS


@define
class Edges:
    """The edges of the state graph, four bytes each: target state and class, by source state."""

    begins: "array[int]" = Factory(lambda: array("Q"))
    sizes: "array[int]" = Factory(lambda: array("i"))  # -1: not expanded
    targets: "array[int]" = Factory(lambda: array("I"))

    def add_state(self) -> None:
        """Add the next state, which is not expanded yet."""
        self.begins.append(0)
        self.sizes.append(-1)

    def expand(self, index: int, row: Sequence[int]) -> None:
        """Store the packed outgoing edges of a state."""
        self.begins[index] = len(self.targets)
        self.sizes[index] = len(row)
        self.targets.extend(row)

    def expanded(self, index: int) -> bool:
        """True if the state was expanded."""
        return self.sizes[index] >= 0

    def row(self, index: int) -> "array[int]":
        """The packed outgoing edges of a state; none if it is not expanded."""
        begin = self.begins[index]
        return self.targets[begin : begin + max(self.sizes[index], 0)]


@frozen
class Lasso:
    """A refuting run, as packed edges from an initial state; with an empty cycle the run stays."""

    initial: int
    prefix: tuple[int, ...]
    cycle: tuple[int, ...]


@frozen
class Recurrence:
    """The states in which a run can stay forever, the same for each property of a graph.

    `resting`: states without fair actions. `core`: a set of states that contains every cycle.
    """

    resting: frozenset[int]
    core: frozenset[int]


def recurrence(edges: Edges) -> Recurrence:
    """The states in which a run can stay forever.

    States that were not expanded are left out: on an unfinished graph a refutation is valid, but
    its absence is no proof.
    """
    states = range(len(edges.sizes))
    resting = frozenset(i for i in states if edges.expanded(i) and not _offered(edges, i))
    return Recurrence(resting, frozenset(_core(edges, states)))


def refutation(
    edges: Edges, marks: bytearray, initial: Iterable[int], where: Recurrence
) -> Lasso | None:
    """The refuting run with the shortest prefix, and the shortest cycle there; None if none exists.

    `marks`: `GOAL`, else `TRIGGER`, else 0 for each state.
    """
    if all(marks[index] == GOAL for states in (where.resting, where.core) for index in states):
        return None
    region = _region(edges, marks)
    resting = region & where.resting
    rounds = _fair_components(edges, region & where.core)
    if not resting and not rounds:
        return None
    start, prefix, (entry, _) = _prefix(edges, marks, initial, resting | rounds.keys())
    cycle = () if entry in resting else _fair_cycle(edges, rounds[entry], entry)
    return Lasso(start, prefix, cycle)


def _is_pending(mark: int) -> bool:
    return mark == TRIGGER


def _offered(edges: Edges, index: int) -> set[int]:
    """The classes of which an action is possible in the state."""
    return {edge & _CLASS for edge in edges.row(index)} - {0}


def _region(edges: Edges, marks: bytearray) -> set[int]:
    """The states reachable from a pending state without meeting the goal."""
    stack = [index for index, mark in enumerate(marks) if _is_pending(mark)]
    inside = set(stack)
    for index in stack:  # grows while it is read
        for edge in edges.row(index):
            target = edge >> _CLASS_BITS
            if target not in inside and marks[target] != GOAL:
                inside.add(target)
                stack.append(target)
    return inside


def _fair_components(edges: Edges, core: set[int]) -> dict[int, set[int]]:
    """By state, its strongly connected component, if a fair run can stay in that forever."""
    import networkx as nx

    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_edges_from(
        (source, edge >> _CLASS_BITS)
        for source in core
        for edge in edges.row(source)
        if edge >> _CLASS_BITS in core
    )
    components = {}
    for component in nx.strongly_connected_components(graph):
        if _is_fair(edges, component):
            components.update(dict.fromkeys(component, component))
    return components


def _is_fair(edges: Edges, component: set[int]) -> bool:
    """True if a run can stay in the component and refuse no class forever."""
    inside = [
        edge for index in component for edge in edges.row(index) if edge >> _CLASS_BITS in component
    ]
    refused = set.intersection(*(_offered(edges, index) for index in component))
    return bool(inside) and refused <= {edge & _CLASS for edge in inside}


def _core(edges: Edges, states: Iterable[int]) -> set[int]:
    """The states without most dead ends: states on no cycle, from which every run ends.

    No cycle is lost. A graph for `networkx` takes a kilobyte a state, and most explored workloads
    end, so that nearly no state is left for it. Each pass goes backwards in the order of discovery
    and so follows long chains of dead ends; passes repeat while they remove an eighth of the
    states.
    """
    core, order = set(states), sorted(states, reverse=True)
    while order:
        for index in order:
            if not any(edge >> _CLASS_BITS in core for edge in edges.row(index)):
                core.discard(index)
        if len(core) * 8 > len(order) * 7:
            break
        order = [index for index in order if index in core]
    return core


def _prefix(
    edges: Edges, marks: bytearray, initial: Iterable[int], entries: Container[int]
) -> tuple[int, tuple[int, ...], Node]:
    """The shortest path to an entry through a pending state; a node is (state, was pending)."""

    def nodes(index: int) -> list[Node]:
        return [(index, False), (index, True)] if _is_pending(marks[index]) else [(index, False)]

    def moves(node: Node) -> Iterator[Move]:
        for edge in edges.row(node[0]):
            target = edge >> _CLASS_BITS
            if not node[1]:
                yield from ((edge, after) for after in nodes(target))
            elif marks[target] != GOAL:
                yield edge, (target, True)

    starts = [node for index in initial for node in nodes(index)]
    start, way, end = _shortest(starts, moves, lambda node: bool(node[1]) and node[0] in entries)
    return start[0], way, end


def _fair_cycle(edges: Edges, component: set[int], entry: int) -> tuple[int, ...]:
    """The shortest fair cycle through a state; a node is (state, classes that are due, as bits).

    A class is due until the run takes one of its edges or visits a state where none is possible.
    """
    offers = {index: sum(1 << fair for fair in _offered(edges, index)) for index in component}

    def moves(node: Node) -> Iterator[Move]:
        for edge in edges.row(node[0]):
            target, fair = unpacked(edge)
            if target in component:
                yield edge, (target, node[1] & offers[target] & ~(1 << fair))

    return _shortest([(entry, offers[entry])], moves, lambda node: node == (entry, 0))[1]


def _shortest(
    starts: Iterable[Node],
    moves: Callable[[Node], Iterable[Move]],
    wanted: Callable[[Node], bool],
) -> tuple[Node, tuple[int, ...], Node]:
    """A shortest path by breadth-first search: its first node, its edges and its wanted last node.

    Raises:
        AssertionError: there is no path; the callers know that there is one.
    """
    predecessors: dict[Node, tuple[int, Node] | None] = dict.fromkeys(starts)
    queue = deque(predecessors)
    while queue:
        node = queue.popleft()
        if wanted(node):
            return *_way(predecessors, node), node
        for edge, target in moves(node):
            if target not in predecessors:
                predecessors[target] = (edge, node)
                queue.append(target)
    raise AssertionError("no way to a node that was found reachable")


def _way(
    predecessors: dict[Node, tuple[int, Node] | None], node: Node
) -> tuple[Node, tuple[int, ...]]:
    way = []
    while (step := predecessors[node]) is not None:
        edge, node = step
        way.append(edge)
    return node, tuple(reversed(way))
