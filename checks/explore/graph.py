"""The state graph as a graph, for GraphML and for comparing two machines."""

from collections.abc import Hashable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import networkx as nx

from checks.explore.bounds import Bounds
from checks.explore.examine import MACHINE_ERROR
from checks.explore.model import Model, OnStep, StateT, Transition
from checks.explore.search import explore


class MachineError(Exception):
    """The model raised, so that it has no whole state graph."""


def state_graph(model: Model[StateT], bounds: Bounds | None = None) -> "nx.DiGraph[Hashable]":
    """The reachable states, by canonical value, and the transitions between them.

    Two machines agree, state for state and edge for edge, if `nx.utils.graphs_equal` says so of
    their graphs. Every edge has `actions`, the labels of the transitions that it stands for, in
    sorted order and joined with "; ". The graph has `complete`: whether no bound cut it short.

    Raises:
        MachineError: the model raised on the way.
        ValueError: the model has no initial state.
    """
    import networkx as nx

    graph: nx.DiGraph[Hashable] = nx.DiGraph()
    graph.add_nodes_from(map(model.canonical, model.initial()))
    drawn = OnStep("drawn", partial(_draw, graph, model))
    result = explore(model, [drawn], bounds=bounds, keep_going=True)
    for violation in result.violations:
        if violation.rule == MACHINE_ERROR:
            raise MachineError(violation.found)
    for _, _, labels in graph.edges(data=True):
        labels["actions"] = "; ".join(sorted(labels["actions"]))
    graph.graph["complete"] = result.stopped_by is None
    return graph


def _draw(
    graph: "nx.DiGraph[Hashable]",
    model: Model[StateT],
    state: StateT,
    transition: Transition[StateT],
) -> None:
    source, target = model.canonical(state), model.canonical(transition.state)
    if not graph.has_edge(source, target):
        graph.add_edge(source, target, actions=set())
    graph.edges[source, target]["actions"].add(transition.action)
