"""The engine's reachable states and steps are the reference's: all of them, not a sample."""

from collections.abc import Hashable
from typing import TYPE_CHECKING

import networkx as nx
import pytest
from attrs import evolve

from checks.explore.environment import MachineModel
from checks.explore.instance import Instance
from checks.explore.policy import machine_of
from checks.harness.policy import system_of
from checks.harness.system import ENGINE
from checks.policies.spyre.engine import sampled_alone
from checks.policies.spyre.model import spyre_model
from engine.core.blocks import BlockManager
from engine.spyre.observing import Observer
from engine.spyre.scheduler import Scheduler
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context
from spec.spyre.state import State
from tests.checks.faults.planting import Planted
from tests.checks.policies import engine_model
from tests.checks.policies.engine_model import EngineMachine, head_first

if TYPE_CHECKING:
    Graph = nx.DiGraph[Hashable]

# An engine is told each name once, so that no client comes back; and it says what it can do.
CAN_DO = system_of("spyre", ENGINE).hello.can_do
BY_NAME = {
    instance.name: evolve(instance, returning=frozenset())
    for instance in machine_of("spyre").instances
    if CAN_DO(instance.config)
}

# Small enough for every run, and together: caching and eviction, preemption, pausing, aborts, early
# ends, three queues, all three admission rules, interleaving off.
FAST = {
    "documented, length",
    "shipped, not interleaved",
    "shared prefix",
    "eviction",
    "preemption, shared prefix",
    "aligned, preemption",
}


def graphs(instance: Instance[SpyreConfig]) -> "tuple[Graph, Graph]":
    """The reference's graph and the engine's."""
    model = with_names_and_numbers(instance)
    machine = EngineMachine(model.ctx, Scheduler, _observed, lambda _, plan: sampled_alone(plan))
    return engine_model.graphs(model, machine)


def with_names_and_numbers(instance: Instance[SpyreConfig]) -> MachineModel[Context, State]:
    """The explorer distinguishes neither blocks nor equal requests; here each must be the same."""
    return evolve(spyre_model(instance), canonical=lambda state: state)


def _observed(scheduler: Scheduler) -> State:
    return Observer(scheduler).state()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.thorough) for name in BY_NAME],
)
def test_engine_has_the_states_and_steps_of_the_reference(name: str) -> None:
    reference, engine = graphs(BY_NAME[name])

    assert nx.utils.graphs_equal(reference, engine)
    assert engine.graph["complete"]


def test_fast_instances_bring_about_what_is_worth_comparing() -> None:
    instances = [BY_NAME[name] for name in FAST]

    assert any(instance.aborts for instance in instances)
    assert any(instance.early_ends for instance in instances)
    assert any(not instance.config.reservation for instance in instances)
    assert any(instance.config.may_pause for instance in instances)
    assert {instance.config.admission for instance in instances} == {
        "exact",
        "documented",
        "shipped",
    }
    assert {instance.config.queue for instance in instances} == {"fcfs", "overtaking", "aligned"}


def test_only_actions_that_the_engine_refuses_are_missing() -> None:
    unexplored = {instance.name for instance in machine_of("spyre").instances} - set(BY_NAME)

    assert unexplored == {"released"}


def test_blocks_given_back_in_another_order_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    Planted("", "", BlockManager, "release", head_first).plant(monkeypatch)

    reference, engine = graphs(BY_NAME["documented, length"])

    assert not nx.utils.graphs_equal(reference, engine)
