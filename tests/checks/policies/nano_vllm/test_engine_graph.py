"""The engine's reachable states and steps are the reference's: all of them, not a sample."""

from typing import Any

import networkx as nx
import pytest
from attrs import evolve

from checks.explore.policy import machine_of
from checks.policies.nano_vllm.engine import sampled_alone
from engine.nano_vllm.blocks import BlockManager
from engine.nano_vllm.observing import Observer
from engine.nano_vllm.running import Running
from engine.nano_vllm.scheduler import Scheduler
from spec.core.errors import ConfigError
from tests.checks.faults.patches import always
from tests.checks.faults.planting import Planted
from tests.checks.policies.engine_model import EngineMachine, graphs, head_first

BY_NAME = {instance.name: instance for instance in machine_of("nano-vllm").instances}


def both_graphs(name: str) -> tuple[Any, Any]:
    """The reference's graph and the engine's; clients do not come back, which only adds names."""
    model = machine_of("nano-vllm").model(evolve(BY_NAME[name], returning=frozenset()))
    machine = EngineMachine(
        model.ctx, Scheduler, lambda scheduler: Observer(scheduler).state(), sampled_alone
    )
    return graphs(model, machine)


# Small enough for every run, and together: caching and eviction, false hits, preemption, both
# limits, requests that can never be served, aborts and early ends.
FAST = {
    "budget",
    "left behind",
    "same block elsewhere",
    "same tokens twice",
    "oversized",
    "documented, eviction",
    "repaired, shared prefix",
}
UNFINISHED = {"documented"}  # where the reference stops, at NANO-SLT-1
UNREAD = {"decoded first", "decoded first, preemption"}  # a reading that the engine has not


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in FAST else pytest.mark.thorough)
        for name in BY_NAME
        if name not in UNFINISHED | UNREAD
    ],
)
def test_engine_has_the_states_and_steps_of_the_reference(name: str) -> None:
    reference, engine = both_graphs(name)

    assert nx.utils.graphs_equal(reference, engine)
    assert engine.graph["complete"]


def test_fast_instances_bring_about_what_is_worth_comparing() -> None:
    instances = [BY_NAME[name] for name in FAST]

    assert any(instance.aborts for instance in instances)
    assert any(instance.early_ends for instance in instances)
    for key in ("token_gate", "sequence_limit", "hit_check", "full_hit", "oversized"):
        assert len({getattr(instance.config, key) for instance in instances}) > 1, key


def test_engine_refuses_the_reading_that_the_reference_alone_has() -> None:
    for name in UNREAD:
        with pytest.raises(ConfigError, match="full_hit"):
            Scheduler(BY_NAME[name].config)


FAULTS = {
    "released head first": Planted("", "", BlockManager, "release", head_first),
    # No random case names the requests that end, so that only the graph shows this one.
    "limit not seen": Planted("", "", Running, "full", always([])),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_planted_fault_is_noticed(fault: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    fault.plant(monkeypatch)

    reference, engine = both_graphs("left behind")

    assert not nx.utils.graphs_equal(reference, engine)
