"""The engine's reachable states and steps are the reference's: all of them, not a sample."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import networkx as nx
import pytest
from attrs import evolve, field, frozen

from checks.explore.environment import MachineModel
from checks.explore.graph import state_graph
from checks.explore.policy import machine_of
from checks.policies.vllm_v1.engine import sampled_alone
from checks.policies.vllm_v1.model import loads_of, steps_of
from engine.vllm_v1 import apply
from engine.vllm_v1.blocks import BlockManager
from engine.vllm_v1.observing import Observer, StepObserver
from engine.vllm_v1.plan import Plan
from engine.vllm_v1.running import Running
from engine.vllm_v1.scheduler import Scheduler
from reference.vllm_v1.step import Environment
from spec.vllm_v1.records import Context, State, Step
from spec.vllm_v1.records import Sequence as Row
from tests.checks.faults.patches import Wrong, always
from tests.checks.faults.planting import Planted
from tests.engine.scenes import copied

BY_NAME = {instance.name: instance for instance in machine_of("vllm-v1").instances}


@frozen
class Node:
    """A scheduler, which does not change any more, and what an observer sees of it."""

    scheduler: Scheduler = field(eq=False)
    state: State

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)


@frozen
class EngineMachine:
    """The engine's scheduler as a machine: each transition changes a copy."""

    ctx: Context

    def initial(self) -> Node:
        """No request has arrived."""
        return _node(Scheduler(self.ctx.config))

    def arrive(self, node: Node, request_id: str) -> Node:
        """A request is handed in between two steps."""
        scheduler = copied(node.scheduler)
        scheduler.add(self.ctx.requests[request_id], self.ctx.external.get(request_id, 0))
        return _node(scheduler)

    def abort(self, node: Node, request_id: str) -> Node:
        """A client goes away between two steps."""
        scheduler = copied(node.scheduler)
        assert scheduler.abort(request_id)
        return _node(scheduler)

    def end_load(self, node: Node, request_id: str, failed: bool = False) -> Node:
        """An asynchronous load ends between two steps."""
        scheduler = copied(node.scheduler)
        assert scheduler.end_load(request_id, failed)
        return _node(scheduler)

    def step(self, node: Node, environment: Environment) -> Step:
        """One scheduler step; its states are those of the engine, the last one with the engine."""
        scheduler = copied(node.scheduler)
        observer = StepObserver(scheduler)
        observer.begin()
        plan = scheduler.schedule()
        rows = {row.id: row for row in node.state.present}
        ends = frozenset(one for one in _scheduled(plan) if environment.ends(rows[one]))
        outcome = scheduler.update(
            plan,
            sampled_alone(scheduler, plan),
            ends,
            _accepted(plan, rows, environment),
            [one.row.id for one in plan.turns if environment.loses(one.row.id)],
            environment.leavers,
        )
        step = observer.end(plan, outcome, 0, 0.0, ends)
        scheduler.state.planned = None
        after: Any = Node(scheduler, step.after)
        return evolve(step, after=after)


def _scheduled(plan: Plan) -> list[str]:
    batch = () if plan.batch is None else plan.batch.ids
    return [*batch, *(turn.row.id for turn in plan.turns)]


def _accepted(plan: Plan, rows: dict[str, Row], environment: Environment) -> dict[str, int]:
    return {
        turn.row.id: environment.accepted(rows[turn.row.id], turn.drafts)
        for turn in plan.turns
        if turn.drafts
    }


def _node(scheduler: Scheduler) -> Node:
    return Node(scheduler, Observer(scheduler).state())


def graphs_of(name: str) -> tuple[Any, Any]:
    """The reference's graph and the engine's; clients do not come back, which only adds names."""
    instance = evolve(BY_NAME[name], returning=frozenset())
    model = machine_of("vllm-v1").model(instance)
    machine: Any = EngineMachine(model.ctx)
    engine = MachineModel(
        instance,
        machine,
        steps=steps_of(instance, machine),
        between=loads_of(instance, machine),
        canonical=attrgetter("state"),
        observed=attrgetter("state"),
    )
    return state_graph(model), state_graph(engine)


# Small enough for every run, and together: preemption by both policies, chunks, caching within a
# step and eviction, drafts and filling up, lookahead, loads that come, are lost or left.
FAST = {
    "priority": 887,
    "priority, hashed ahead": 30,
    "uncut": 480,
    "uncut, 0.11.2": 361,
    "eviction, 0.11.2": 301,
    "speculation": 548,
    "speculation, padding, model length": 273,
    "lookahead": 108,
    "async load, priority": 66,
    "sync load, lost": 103,
    "sync load, gone": 173,
    "open, async load": 345,
}


@pytest.mark.parametrize(("name", "states"), FAST.items(), ids=FAST.keys())
def test_engine_has_the_states_and_steps_of_the_reference(name: str, states: int) -> None:
    reference, engine = graphs_of(name)

    assert len(reference) == states
    assert nx.utils.graphs_equal(reference, engine)
    assert engine.graph["complete"]


def test_fast_instances_bring_about_what_is_worth_comparing() -> None:
    instances = [BY_NAME[name] for name in FAST]

    for may in ("aborts", "early_ends", "failing", "leavers"):
        assert any(getattr(one, may) for one in instances), may
    for key in ("scheduling", "release", "connector", "chunked_prefill", "prefix_caching"):
        values = {getattr(one.config, key) for one in instances}
        assert values == {
            getattr(instance.config, key) for instance in machine_of("vllm-v1").instances
        }, key


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in BY_NAME if name not in FAST])
def test_engine_has_the_states_and_steps_of_the_reference_everywhere(name: str) -> None:
    reference, engine = graphs_of(name)

    assert nx.utils.graphs_equal(reference, engine)
    assert engine.graph["complete"]


def head_first(right: Wrong, blocks: BlockManager, table: Sequence[int]) -> None:
    """A table is given back from its head on."""
    right(blocks, table[::-1])


def by_content(_right: Wrong, _blocks: BlockManager, _block: int, key: object) -> bool:
    """Blocks without content go in front of the free list whatever the release."""
    return key is not None


def leavers_stay(right: Wrong, state: Any, results: Any, outcome: Any) -> None:
    """A client that goes away while the model runs is not noticed."""
    right(state, evolve(results, leavers=()), outcome)


FAULTS = {
    "released head first": ("speculation", Planted("", "", BlockManager, "release", head_first)),
    # In random cases no client leaves an engine while it runs: only the graph shows this one.
    "leavers stay": ("sync load, gone", Planted("", "", apply, "_let_go", leavers_stay)),
    # As random cases follow the newest release, and rarely have a victim by priority.
    "release not asked": ("eviction, 0.11.2", Planted("", "", BlockManager, "is_kept", by_content)),
    "left out and counted on": ("priority", Planted("", "", apply, "_stop_decoding", always(None))),
    "limit not seen": ("priority", Planted("", "", Running, "full", always([]))),
}


@pytest.mark.parametrize(("name", "fault"), FAULTS.values(), ids=FAULTS)
def test_planted_fault_is_noticed(
    name: str, fault: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault.plant(monkeypatch)

    reference, engine = graphs_of(name)

    assert not nx.utils.graphs_equal(reference, engine)
