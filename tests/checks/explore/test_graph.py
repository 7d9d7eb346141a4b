"""The state graph as a drawing and as data for comparison."""

from io import BytesIO

import networkx as nx
import pytest

from checks.explore.bounds import Bounds
from checks.explore.graph import MachineError, state_graph
from tests.checks.explore.toys import Counter, Drawn, Mutex, Philosophers


def test_edges_carry_all_their_actions() -> None:
    graph = state_graph(Drawn(edges=((0, 1, True), (0, 1, False), (1, 1, True))))

    assert dict(graph.edges) == {
        (0, 1): {"actions": "edge 0; edge 1"},
        (1, 1): {"actions": "edge 2"},
    }
    assert graph.graph == {"complete": True}


def test_deadlocks_are_drawn_too() -> None:
    graph = state_graph(Philosophers(2))

    assert (len(graph), graph.number_of_edges()) == (6, 8)
    assert graph.out_degree((1, 1)) == 0
    assert graph.graph["complete"]


def test_symmetric_states_are_one_node() -> None:
    graph = state_graph(Mutex(3, symmetric=True))

    assert len(graph) == 7
    assert graph.edges[(0, 0, 0), (0, 0, 1)]["actions"] == "try 0; try 1; try 2"


def test_bounded_graph_says_that_it_is_a_part() -> None:
    graph = state_graph(Counter(9), Bounds(max_depth=3))

    assert list(graph) == [0, 1, 2, 3]
    assert not graph.graph["complete"]


def test_graph_can_be_written_as_graphml() -> None:
    graph, file = state_graph(Mutex(2)), BytesIO()

    nx.write_graphml(graph, file)
    file.seek(0)
    read = nx.read_graphml(file)

    assert (len(read), read.number_of_edges()) == (8, 14)
    assert read.edges["(0, 0)", "(1, 0)"]["actions"] == "try 0"


def test_machine_that_raises_has_no_graph() -> None:
    class Broken(Counter):
        def unfinished(self, state: int) -> bool:
            raise RuntimeError("no idea")

    with pytest.raises(MachineError, match=r"^raised RuntimeError: no idea$"):
        state_graph(Broken(3))
