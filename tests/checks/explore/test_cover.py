"""Covers: paths of a state graph that take every edge, each path a run of the machine."""

import pytest
from attrs import evolve

from checks.explore.cover import Graph, cover, is_step
from checks.explore.policy import machine_of
from checks.explore.search import explore

CASES = [
    ("spyre", "shared prefix"),  # blocks have other numbers on other ways to a state
    ("nano-vllm", "preemption"),
    ("vllm-v1", "drafts, few blocks"),
    ("vllm-v0", "forks"),
]


def graph_of(policy: str, name: str) -> Graph:  # type: ignore[type-arg]
    part = machine_of(policy)
    instance = next(
        instance for instance in (*part.worlds, *part.instances) if instance.name == name
    )
    return Graph.of(part.model(instance))


@pytest.mark.parametrize(("policy", "name"), CASES)
def test_a_cover_takes_every_edge_that_the_explorer_counts(policy: str, name: str) -> None:
    graph = graph_of(policy, name)
    paths = list(cover(graph, graph))
    assert {edge for path in paths for edge in path} == set(graph)
    result = explore(graph.model, [])
    assert (len(graph), len(graph.states)) == (result.transitions, result.states)


@pytest.mark.parametrize(("policy", "name"), CASES)
def test_a_path_is_a_run_of_the_machine_and_ends_with_a_step(policy: str, name: str) -> None:
    graph = graph_of(policy, name)
    model = graph.model
    for path in list(cover(graph, graph))[::50]:
        (state,) = model.initial()
        transitions = list(graph.transitions(path))
        for edge, taken in zip(path, transitions, strict=True):
            assert taken in list(model.successors(state))
            state = taken.state
            assert model.canonical(state) == model.canonical(graph.states[graph.target(edge)])
        assert is_step(transitions[-1]) or state.is_idle


def test_equal_requests_are_covered_once() -> None:
    part = machine_of("spyre")
    world = next(world for world in part.worlds if world.name == "one slot")
    alike = evolve(
        world,
        requests=tuple(evolve(world.requests[0], id=request.id) for request in world.requests),
    )
    graph = Graph.of(part.model(evolve(alike, config=evolve(alike.config, prefix_caching=False))))
    paths = list(cover(graph, graph))
    assert {edge for path in paths for edge in path} == set(graph)
    first, second = (
        [edge.action for edge in graph.transitions(path)] for path in (paths[0], paths[-1])
    )
    assert first != second
    assert len(graph) < len(graph_of("spyre", "one slot")) / 3


def test_edges_behind_one_that_is_left_out_are_reached_around_it_or_not_at_all() -> None:
    graph = graph_of("nano-vllm", "preemption")
    tree_edge = next(edge for edge in graph if graph.reached[graph.target(edge)] == edge)
    paths = list(cover(graph, graph, {tree_edge}))
    taken = {edge for path in paths for edge in path}
    assert tree_edge not in taken
    assert 0 < len(taken) < len(graph)
