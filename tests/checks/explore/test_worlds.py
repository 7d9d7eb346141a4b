"""The worlds of released schedulers: enough of them, with the edges that their tables pin."""

from collections import Counter

import pytest

from checks.explore.cover import Graph, is_step
from checks.explore.policy import machine_of
from checks.harness.policy import evidence_of
from checks.registry import POLICIES

RELEASED = [policy for policy in POLICIES if machine_of(policy).worlds]

# Transitions and refusals that no release can show: other readings and admissions have them.
NOT_RELEASED = {
    "spyre": {
        "preempt",
        "refused by SPY-PRI-11",
        "refused by BLK-9",
        "refused by SPY-LEN-2",
        "refused by SPY-VOL-2",
        "refused by SPY-VOL-4",
    },
    "vllm-v1": {"loaded", "load_failed"},  # of edges between two steps
}
COUNTED_ELSEWHERE = ("abort", "arrive", "early end", "idle step")  # of actions, not of steps


def test_every_released_policy_has_twenty_worlds_and_each_a_name_of_its_own() -> None:
    assert {*RELEASED} == {"spyre", "nano-vllm", "vllm-v0", "vllm-v1"}
    for policy in RELEASED:
        part = machine_of(policy)
        assert len(part.worlds) >= 20
        assert sum(world.edges for world in part.worlds) > 95_000
        names = [world.name for world in part.worlds]
        assert len({*names}) == len(names)


@pytest.mark.parametrize("policy", RELEASED)
def test_the_edges_of_the_smallest_world_are_those_that_its_table_pins(policy: str) -> None:
    part = machine_of(policy)
    world = min(part.worlds, key=lambda world: world.edges)
    assert len(Graph.of(part.model(world))) == world.edges


@pytest.mark.thorough
@pytest.mark.parametrize("policy", RELEASED)
def test_every_world_has_the_edges_of_its_table_and_all_labels_are_met(policy: str) -> None:
    part, labels = machine_of(policy), evidence_of(policy).labels
    met: Counter[str] = Counter()
    edges = {}
    for world in part.worlds:
        graph = Graph.of(part.model(world))
        edges[world.name] = len(graph)
        for edge in graph:
            transition = graph.transition(edge)
            if is_step(transition):
                labels.add(met, transition.record, 0)
    assert edges == {world.name: world.edges for world in part.worlds}
    never = {name for name in labels.actions if not met[name]}
    assert {name for name in never if not name.startswith(COUNTED_ELSEWHERE)} == (
        NOT_RELEASED.get(policy, set())
    )
