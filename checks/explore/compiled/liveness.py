"""What must come sooner or later, on the graph that a search of a compiled machine found.

As `checks.explore.liveness` has it, for machines that have one class of actions that must happen,
their steps, and can take one wherever a goal is open: then a run that never meets a goal exists
exactly if a strongly connected component of the states in which it is open has a step inside.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import frozen

Numbers = npt.NDArray[np.int64]


@frozen
class Graph:
    """The edges of all states: from state i to `targets` from `begins[i]` to before `begins[i+1]`.

    `steps`: whether each edge is a step. `goals`: of each state the goals that are open, as bits.
    """

    begins: Numbers
    targets: npt.NDArray[np.int32]
    steps: npt.NDArray[np.bool_]
    goals: Numbers

    def edges_of(self, index: int) -> range:
        """The numbers of the edges that leave a state."""
        return range(int(self.begins[index]), int(self.begins[index + 1]))


@frozen
class Cycle:
    """A way that never meets a goal, by its states: it begins and ends in the same one."""

    states: Sequence[int]


def cycle_without(graph: Graph, goal: int, core: npt.NDArray[np.bool_]) -> Cycle | None:
    """The shortest cycle through the first state that has one without this goal and with a step.

    `core`: states outside are on no cycle (`on_cycles`). States are numbered as they were found,
    so that no way to such a state is shorter than that to the first.
    """
    inside = core & (graph.goals >> goal & 1).astype(bool)
    kept = np.flatnonzero(inside)
    if not kept.size:
        return None
    components = _components(graph, inside)
    sources = np.repeat(np.arange(len(graph.goals)), np.diff(graph.begins))
    is_within = inside[sources] & inside[graph.targets]
    rounds = is_within & graph.steps
    rounds[rounds] = components[sources[rounds]] == components[graph.targets[rounds]]
    if not rounds.any():
        return None
    fair = np.isin(components, np.unique(components[sources[rounds]])) & inside
    entry = int(np.flatnonzero(fair)[0])
    return Cycle(_shortest_round(graph, components, entry))


def on_cycles(graph: Graph) -> npt.NDArray[np.bool_]:
    """The states that are on a cycle, a step that leads back to where it began among them."""
    everywhere = np.ones(len(graph.goals), np.bool_)
    components = _components(graph, everywhere)
    found = np.bincount(components)[components] > 1
    sources = np.repeat(np.arange(len(graph.goals)), np.diff(graph.begins))
    found[sources[sources == graph.targets]] = True
    return found


def _components(graph: Graph, inside: npt.NDArray[np.bool_]) -> Numbers:
    """The strongly connected component of each state, -1 of those that are not inside."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    kept = np.flatnonzero(inside)
    shape = (len(graph.goals), len(graph.goals))
    ones = np.ones(len(graph.targets), np.int8)
    edges: Any = csr_matrix((ones, graph.targets, graph.begins), shape=shape)
    _, found = connected_components(edges[kept][:, kept], directed=True, connection="strong")
    components = np.full(len(graph.goals), -1, np.int64)
    components[kept] = found
    return components


def _shortest_round(graph: Graph, components: Numbers, entry: int) -> list[int]:
    """The shortest way with a step from a state back to it, within its component."""
    came_from: dict[tuple[int, bool], tuple[int, bool] | None] = {(entry, False): None}
    queue = deque(came_from)
    while queue and (entry, True) not in came_from:
        node = index, stepped = queue.popleft()
        for edge in graph.edges_of(index):
            after = int(graph.targets[edge]), stepped or bool(graph.steps[edge])
            if components[after[0]] == components[entry] and after not in came_from:
                came_from[after] = node
                queue.append(after)
    way: list[int] = []
    node_of_way: tuple[int, bool] | None = (entry, True)
    while node_of_way is not None:
        way.append(node_of_way[0])
        node_of_way = came_from[node_of_way]
    return way[::-1]
