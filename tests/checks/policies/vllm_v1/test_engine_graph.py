"""The engine's reachable states and steps are the reference's: all of them, not a sample."""

from operator import attrgetter
from typing import Any

import networkx as nx
import pytest
from attrs import evolve

from checks.explore.environment import MachineModel
from checks.explore.graph import state_graph
from checks.explore.policy import machine_of
from checks.policies.vllm_v1.engine import sampled_alone
from checks.policies.vllm_v1.model import load_transitions, step_transitions
from engine.vllm_v1 import apply
from engine.vllm_v1.blocks import BlockManager
from engine.vllm_v1.observing import Observer, StepObserver
from engine.vllm_v1.plan import Plan
from engine.vllm_v1.running import Running
from engine.vllm_v1.scheduler import Scheduler
from reference.vllm_v1.step import Environment
from spec.vllm_v1.records import Sequence as Row
from spec.vllm_v1.records import Step
from tests.checks.faults.patches import Wrong, always
from tests.checks.faults.planting import Planted
from tests.checks.policies.engine_model import EngineMachine, Node, head_first
from tests.engine.scenes import copied

BY_NAME = {instance.name: instance for instance in machine_of("vllm-v1").instances}


class VllmV1EngineMachine(EngineMachine):
    """The engine's scheduler as a machine with loads, drafts and clients that leave in a step."""

    def arrive(self, node: Node, request_id: str) -> Node:
        """A request arrives between two steps."""
        request, external = self.ctx.requests[request_id], self.ctx.external.get(request_id, 0)
        return self.changed(node, lambda scheduler: scheduler.add(request, external))

    def end_load(self, node: Node, request_id: str, failed: bool = False) -> Node:
        """An asynchronous load ends between two steps."""
        return self.changed(node, lambda scheduler: scheduler.end_load(request_id, failed))

    def step(self, node: Node, environment: Environment) -> Step:  # type: ignore[override]
        """One scheduler step with the engine's states; `after` is a node."""
        scheduler: Any = copied(node.scheduler)
        observer = StepObserver(scheduler)
        observer.begin()
        plan = scheduler.schedule()
        rows = {row.id: row for row in node.state.present}
        ends = frozenset(
            request_id for request_id in _scheduled(plan) if environment.ends(rows[request_id])
        )
        outcome = scheduler.update(
            plan,
            sampled_alone(scheduler, plan),
            ends,
            _accepted(plan, rows, environment),
            [turn.row.id for turn in plan.turns if environment.loses(turn.row.id)],
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


def both_graphs(name: str) -> tuple[Any, Any]:
    """The reference's graph and the engine's; clients do not come back, which only adds names."""
    instance = evolve(BY_NAME[name], returning=frozenset())
    model = machine_of("vllm-v1").model(instance)
    machine: Any = VllmV1EngineMachine(
        model.ctx, Scheduler, lambda scheduler: Observer(scheduler).state(), sampled_alone
    )
    engine = MachineModel(
        instance,
        machine,
        steps=step_transitions(instance, machine),
        between=load_transitions(instance, machine),
        canonical=attrgetter("state"),
        observed=attrgetter("state"),
    )
    return state_graph(model), state_graph(engine)


# Small enough for every run, and together: preemption by both policies, chunks, caching within a
# step and eviction, drafts and filling up, lookahead, loads that come, are lost or left.
FAST = {
    "priority",
    "priority, hashed ahead",
    "uncut",
    "uncut, 0.11.2",
    "eviction, 0.11.2",
    "speculation",
    "speculation, padding, model length",
    "lookahead",
    "async load, priority",
    "sync load, lost",
    "sync load, gone",
    "open, async load",
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in FAST else pytest.mark.thorough) for name in BY_NAME],
)
def test_engine_has_the_states_and_steps_of_the_reference(name: str) -> None:
    reference, engine = both_graphs(name)

    assert nx.utils.graphs_equal(reference, engine)
    assert engine.graph["complete"]


def test_fast_instances_bring_about_what_is_worth_comparing() -> None:
    instances = [BY_NAME[name] for name in FAST]

    for may in ("aborts", "early_ends", "failing", "leavers"):
        assert any(getattr(instance, may) for instance in instances), may
    for key in ("scheduling", "release", "connector", "chunked_prefill", "prefix_caching"):
        values = {getattr(instance.config, key) for instance in instances}
        assert values == {
            getattr(instance.config, key) for instance in machine_of("vllm-v1").instances
        }, key


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

    reference, engine = both_graphs(name)

    assert not nx.utils.graphs_equal(reference, engine)
