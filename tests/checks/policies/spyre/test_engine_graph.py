"""The engine's reachable states and steps are the reference's: all of them, not a sample."""

from collections.abc import Hashable, Sequence
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
from tests.checks.policies import engine_model
from tests.checks.policies.engine_model import EngineMachine

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
    "documented, length": 1_356,
    "shipped, not interleaved": 2_377,
    "shared prefix": 682,
    "eviction": 1_110,
    "preemption, shared prefix": 899,
    "aligned, preemption": 1_819,
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


@pytest.mark.parametrize(("name", "states"), FAST.items(), ids=FAST.keys())
def test_engine_has_the_states_and_steps_of_the_reference(name: str, states: int) -> None:
    reference, engine = graphs(BY_NAME[name])

    assert len(reference) == states
    assert nx.utils.graphs_equal(reference, engine)
    assert engine.graph["complete"]


def test_fast_instances_bring_about_what_is_worth_comparing() -> None:
    instances = [BY_NAME[name] for name in FAST]

    assert any(one.aborts for one in instances)
    assert any(one.early_ends for one in instances)
    assert any(not one.config.reservation for one in instances)
    assert any(one.config.may_pause for one in instances)
    assert {one.config.admission for one in instances} == {"exact", "documented", "shipped"}
    assert {one.config.queue for one in instances} == {"fcfs", "overtaking", "aligned"}


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in FAST])
def test_engine_has_the_states_and_steps_of_the_reference_everywhere(name: str) -> None:
    reference, engine = graphs(BY_NAME[name])

    assert nx.utils.graphs_equal(reference, engine)
    assert engine.graph["complete"]


def test_only_what_the_engine_says_that_it_cannot_do_is_left_out() -> None:
    left_out = {instance.name for instance in machine_of("spyre").instances} - set(BY_NAME)

    assert left_out == {"released"}


def test_blocks_given_back_in_another_order_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    release = BlockManager.release

    def head_first(self: BlockManager, table: Sequence[int]) -> None:
        release(self, table[::-1])

    monkeypatch.setattr(BlockManager, "release", head_first)
    reference, engine = graphs(BY_NAME["documented, length"])

    assert not nx.utils.graphs_equal(reference, engine)
