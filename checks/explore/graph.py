"""The state graph as a networkx graph, for GraphML and for comparing two machines."""

from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import networkx as nx

from checks.explore.bounds import Bounds
from checks.explore.examine import MACHINE_ERROR
from checks.explore.model import Model, OnStep, StateT, Transition
from checks.explore.search import explore
from checks.export.files import new_file


class MachineError(Exception):
    """The model raised, so that its state graph is incomplete."""


def state_graph(model: Model[StateT], bounds: Bounds | None = None) -> "nx.DiGraph[Hashable]":
    """The reachable states, by canonical value, and the transitions between them.

    Two machines agree, state for state and edge for edge, if `nx.utils.graphs_equal` says so of
    their graphs. Every edge has `actions`: the sorted labels of its transitions, joined with "; ".
    The graph has `complete`: whether no bound stopped the search.

    Raises:
        MachineError: the model raised.
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


def write_graph(
    path: Path,
    model: Model[StateT],
    as_json: Callable[[StateT], dict[str, Any]],
    bounds: Bounds | None = None,
) -> None:
    """Write the state graph as GraphML: states in the order of discovery, with their queues.

    Raises:
        MachineError: the model raised.
        OSError: the file cannot be written.
    """
    import networkx as nx

    graph = state_graph(model, bounds)
    numbered = nx.convert_node_labels_to_integers(graph, label_attribute="state")
    for _, node in numbered.nodes(data=True):
        node |= _queues(as_json(node.pop("state")))
    with new_file(path) as file:
        file.writelines(f"{line}\n" for line in nx.generate_graphml(numbered))


def _queues(state: dict[str, Any]) -> dict[str, str]:
    """The ids of the requests in each queue of a state, as traces write it."""
    queues = {name: _queue(value) for name, value in state.items()}
    return {
        name: " ".join(row if isinstance(row, str) else row["id"] for row in queue)
        for name, queue in queues.items()
        if queue is not None
    }


def _queue(value: Any) -> list[Any] | None:
    """The rows or ids in a field of a state; None for a field that holds no requests."""
    match value:
        case list():
            return value
        case None:
            return []
        case {"id": _}:
            return [value]
    return None
