"""Liveness on the graph of a compiled machine: every goal must be met sooner or later.

This is the fairness of `checks.explore.liveness` for machines whose only fair actions are their
steps, with a step possible wherever a goal is open. Then a run that never meets a goal exists
exactly if a strongly connected component of the states in which the goal is open contains a step.
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

    def outgoing(self, index: int) -> range:
        """The indices of the outgoing edges of a state."""
        return range(int(self.begins[index]), int(self.begins[index + 1]))


@frozen
class Cycle:
    """A cycle that never meets a goal, as states; the first and the last are the same."""

    states: Sequence[int]


def find_cycle(graph: Graph, goal: int, core: npt.NDArray[np.bool_]) -> Cycle | None:
    """The shortest cycle that has a step and never meets the goal, through the first such state.

    `core`: the states that are on cycles (`cycle_states`). States are numbered in breadth-first
    order, so that the first such state has a shortest run to it.
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


def cycle_states(graph: Graph) -> npt.NDArray[np.bool_]:
    """True for each state on a cycle; a self-loop is a cycle."""
    everywhere = np.ones(len(graph.goals), np.bool_)
    components = _components(graph, everywhere)
    is_on_cycle = np.bincount(components)[components] > 1
    sources = np.repeat(np.arange(len(graph.goals)), np.diff(graph.begins))
    is_on_cycle[sources[sources == graph.targets]] = True
    return is_on_cycle


def _components(graph: Graph, inside: npt.NDArray[np.bool_]) -> Numbers:
    """The strongly connected component of each state; -1 for states that are not inside."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    kept = np.flatnonzero(inside)
    shape = (len(graph.goals), len(graph.goals))
    ones = np.ones(len(graph.targets), np.int8)
    edges: Any = csr_matrix((ones, graph.targets, graph.begins), shape=shape)
    _, labels = connected_components(edges[kept][:, kept], directed=True, connection="strong")
    components = np.full(len(graph.goals), -1, np.int64)
    components[kept] = labels
    return components


def _shortest_round(graph: Graph, components: Numbers, entry: int) -> list[int]:
    """The shortest cycle with a step through a state, within its component."""
    predecessors: dict[tuple[int, bool], tuple[int, bool] | None] = {(entry, False): None}
    queue = deque(predecessors)
    while queue and (entry, True) not in predecessors:
        node = index, stepped = queue.popleft()
        for edge in graph.outgoing(index):
            after = int(graph.targets[edge]), stepped or bool(graph.steps[edge])
            if components[after[0]] == components[entry] and after not in predecessors:
                predecessors[after] = node
                queue.append(after)
    way: list[int] = []
    node_of_way: tuple[int, bool] | None = (entry, True)
    while node_of_way is not None:
        way.append(node_of_way[0])
        node_of_way = predecessors[node_of_way]
    return way[::-1]
