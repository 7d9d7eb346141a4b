"""The engine's reachable states and steps are the reference's: all of them, not a sample."""

from collections.abc import Sequence
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
from tests.checks.faults.patches import Wrong, always
from tests.checks.faults.planting import Planted
from tests.checks.policies.engine_model import EngineMachine, graphs

BY_NAME = {instance.name: instance for instance in machine_of("nano-vllm").instances}


def graphs_of(name: str) -> tuple[Any, Any]:
    """The reference's graph and the engine's; clients do not come back, which only adds names."""
    model = machine_of("nano-vllm").model(evolve(BY_NAME[name], returning=frozenset()))
    machine = EngineMachine(
        model.ctx, Scheduler, lambda scheduler: Observer(scheduler).state(), sampled_alone
    )
    return graphs(model, machine)


# Small enough for every run, and together: caching and eviction, false hits, preemption, both
# limits, requests that can never be served, aborts and early ends.
FAST = {
    "budget": 916,
    "left behind": 570,
    "same block elsewhere": 69,
    "same tokens twice": 43,
    "oversized": 28,
    "documented, eviction": 45,
    "repaired, shared prefix": 2_422,
}
UNFINISHED = {"documented"}  # where the reference stops, at NANO-SLT-1
UNREAD = {"decoded first", "decoded first, preemption"}  # a reading that the engine has not


@pytest.mark.parametrize(("name", "states"), FAST.items(), ids=FAST.keys())
def test_engine_has_the_states_and_steps_of_the_reference(name: str, states: int) -> None:
    reference, engine = graphs_of(name)

    assert len(reference) == states
    assert nx.utils.graphs_equal(reference, engine)
    assert engine.graph["complete"]


def test_fast_instances_bring_about_what_is_worth_comparing() -> None:
    instances = [BY_NAME[name] for name in FAST]

    assert any(one.aborts for one in instances)
    assert any(one.early_ends for one in instances)
    for key in ("token_gate", "sequence_limit", "hit_check", "full_hit", "oversized"):
        assert len({getattr(one.config, key) for one in instances}) > 1, key


KNOWN = {*FAST, *UNFINISHED, *UNREAD}


def test_engine_refuses_the_reading_that_the_reference_alone_has() -> None:
    for name in UNREAD:
        with pytest.raises(ConfigError, match="full_hit"):
            Scheduler(BY_NAME[name].config)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in KNOWN])
def test_engine_has_the_states_and_steps_of_the_reference_everywhere(name: str) -> None:
    reference, engine = graphs_of(name)

    assert nx.utils.graphs_equal(reference, engine)
    assert engine.graph["complete"]


def head_first(right: Wrong, blocks: BlockManager, table: Sequence[int]) -> None:
    """A table is given back from its head on."""
    right(blocks, table[::-1])


FAULTS = {
    "released head first": Planted("", "", BlockManager, "release", head_first),
    # No random case names the requests that end, so that only the graph shows this one.
    "limit not seen": Planted("", "", Running, "full", always([])),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_planted_fault_is_noticed(fault: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    fault.plant(monkeypatch)

    reference, engine = graphs_of("left behind")

    assert not nx.utils.graphs_equal(reference, engine)
