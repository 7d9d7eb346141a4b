"""Engines with their environment as state graphs, to compare with the graph of the reference.

A state is a scheduler, and each step is taken by a copy; states are equal if an observer sees the
same of them. Each request samples what it samples when it is served alone.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeAlias

from attrs import evolve, field, frozen

from checks.explore.environment import MachineModel, with_early_ends
from checks.explore.instance import Instance
from checks.explore.policy import machine_of
from checks.policies.nano_vllm.engine import sampled_alone as sampled_by_nano_vllm
from checks.policies.spyre.engine import sampled_alone as sampled_by_spyre
from checks.policies.spyre.model import preparations
from checks.policies.vllm_v1.engine import sampled_alone as sampled_by_vllm_v1
from checks.policies.vllm_v1.model import has_work, step_transitions, transfer_transitions
from engine.core.scheduler import Scheduler
from engine.nano_vllm.observing import Observer as NanoVllmObserver
from engine.nano_vllm.scheduler import Scheduler as NanoVllmScheduler
from engine.spyre.observing import Observer as SpyreObserver
from engine.spyre.scheduler import Scheduler as SpyreScheduler
from engine.vllm_v1.observing import Observer as VllmV1Observer
from engine.vllm_v1.observing import StepObserver
from engine.vllm_v1.plan import Plan
from engine.vllm_v1.scheduler import Scheduler as VllmV1Scheduler
from reference.vllm_v1.step import Environment
from spec.vllm_v1.records import Step
from tests.engine.scenes import copied

SomeScheduler: TypeAlias = Scheduler[Any, Any, Any]


@frozen
class Node:
    """An immutable scheduler and its observed state, by which nodes are equal."""

    scheduler: SomeScheduler = field(eq=False)
    state: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)


@frozen
class Stepped:
    """A step of the engine: the scheduler after it, the ids that sampled or finished."""

    after: Node
    outputs: tuple[str, ...]
    finished: tuple[str, ...]


@frozen
class EngineMachine:
    """The engine's scheduler as a machine: each transition changes a copy."""

    ctx: Any
    scheduler: Callable[[Any], SomeScheduler]
    observer: Callable[[Any], Any]
    sampled: Callable[[Any, Any], Any]

    def initial(self) -> Node:
        """No request has arrived."""
        return self.node(self.scheduler(self.ctx.config))

    def arrive(self, node: Node, request_id: str) -> Node:
        """A request arrives between two steps."""
        return self.changed(node, lambda scheduler: scheduler.add(self.ctx.requests[request_id]))

    def abort(self, node: Node, request_id: str) -> Node:
        """A client goes away between two steps."""
        return self.changed(node, lambda scheduler: scheduler.abort(request_id))

    def step(self, node: Node, ends: tuple[str, ...]) -> Any:
        """One scheduler step, in which these requests sample the end of sequence."""
        scheduler = copied(node.scheduler)
        plan = scheduler.schedule()
        outcome = scheduler.update(plan, self.sampled(scheduler, plan), ends)
        return Stepped(self.node(scheduler), outcome.sampled, outcome.finished)

    def model(self, instance: Instance[Any]) -> MachineModel[Any, Any]:
        """The states that an instance reaches."""
        return MachineModel(
            instance,
            self,
            with_early_ends(instance, self.step),
            canonical=attrgetter("state"),
            observed=attrgetter("state"),
        )

    def changed(self, node: Node, change: Callable[[Any], object]) -> Node:
        scheduler = copied(node.scheduler)
        change(scheduler)
        return self.node(scheduler)

    def node(self, scheduler: SomeScheduler) -> Node:
        return Node(scheduler, self.observer(scheduler).state())


class SpyreEngineMachine(EngineMachine):
    """The same with grammars that become ready, and images that are encoded."""

    def compiled(self, node: Node, request_id: str) -> Node:
        """A grammar is ready between two steps."""
        return self.changed(node, lambda scheduler: scheduler.compiled(request_id))

    def encoded(self, node: Node, request_id: str) -> Node:
        """Images are encoded between two steps."""
        return self.changed(node, lambda scheduler: scheduler.encoded(request_id))

    def unencodable(self, node: Node, request_id: str) -> Node:
        """Images turn out to be unencodable between two steps."""
        return self.changed(node, lambda scheduler: scheduler.unencodable(request_id))

    def model(self, instance: Instance[Any]) -> MachineModel[Any, Any]:
        """The states that an instance reaches."""
        machine: Any = self
        return evolve(super().model(instance), between=preparations(instance, machine))


class VllmV1EngineMachine(EngineMachine):
    """The same with loads, drafts and clients that leave in a step."""

    def arrive(self, node: Node, request_id: str) -> Node:
        """A request arrives between two steps."""
        request, external = self.ctx.requests[request_id], self.ctx.external.get(request_id, 0)
        if_lost = self.ctx.if_lost.get(request_id, 0)
        return self.changed(node, lambda scheduler: scheduler.add(request, external, if_lost))

    def end_load(self, node: Node, request_id: str, failed: bool = False) -> Node:
        """An asynchronous load ends between two steps."""
        return self.changed(node, lambda scheduler: scheduler.end_load(request_id, failed))

    def answer(self, node: Node, request_id: str) -> Node:
        """The connector says between two steps what it has of a request."""
        return self.changed(node, lambda scheduler: scheduler.answer(request_id))

    def compiled(self, node: Node, request_id: str) -> Node:
        """A grammar is ready between two steps."""
        return self.changed(node, lambda scheduler: scheduler.compiled(request_id))

    def end_send(self, node: Node, request_id: str) -> Node:
        """The blocks of a request that has left are sent between two steps."""
        return self.changed(node, lambda scheduler: scheduler.end_send(request_id))

    def step(self, node: Node, environment: Environment) -> Step:  # type: ignore[override]
        """One scheduler step with the engine's states; `after` is a node."""
        scheduler: Any = copied(node.scheduler)
        observer = StepObserver(scheduler)
        observer.begin()
        plan = scheduler.schedule()
        due = scheduler.results_due(plan) or Plan(budget=0)
        rows = {row.id: row for row in node.state.present}
        turns = {turn.row.id: turn for turn in due.turns if turn.row.id in rows}
        in_vain = {row.id for row in plan.preempted} if self.ctx.config.sends else set[str]()
        sampling = [id_ for id_, turn in turns.items() if turn.samples and id_ not in in_vain]
        sampling += () if due.batch is None else due.batch.ids
        drafted = {id_: turn.drafts for id_, turn in turns.items() if turn.drafts}
        loading = [id_ for id_, turn in turns.items() if getattr(turn, "external", 0)]
        outcome = scheduler.update(
            plan,
            self.sampled(scheduler, due),
            frozenset(id_ for id_ in sampling if environment.ends(rows[id_])),
            {id_: environment.accepted(rows[id_], drafts) for id_, drafts in drafted.items()},
            [id_ for id_ in loading if environment.loses(id_)],
            environment.leavers,
            lambda row, most: environment.proposes(rows[row.id], most),
        )
        step = observer.end(plan, outcome, 0, 0.0)
        scheduler.state.planned = None
        after: Any = Node(scheduler, step.after)
        return evolve(step, after=after)

    def model(self, instance: Instance[Any]) -> MachineModel[Any, Any]:
        """The states that an instance reaches."""
        machine: Any = self
        return evolve(
            super().model(instance),
            steps=step_transitions(instance, machine),
            between=transfer_transitions(instance, machine),
            later_turns=frozenset(self.ctx.earlier_turns),
            has_work=has_work,
        )


ENGINES: dict[str, tuple[type[EngineMachine], Any, Any, Any]] = {
    "spyre": (
        *(SpyreEngineMachine, SpyreScheduler, SpyreObserver),
        lambda _scheduler, plan: sampled_by_spyre(plan),
    ),
    "nano-vllm": (EngineMachine, NanoVllmScheduler, NanoVllmObserver, sampled_by_nano_vllm),
    "vllm-v1": (VllmV1EngineMachine, VllmV1Scheduler, VllmV1Observer, sampled_by_vllm_v1),
}


def models(policy: str, instance: Instance[Any]) -> tuple[MachineModel[Any, Any], ...]:
    """The reference's model of an instance and the engine's.

    Clients do not come back, which would only add names. Blocks and equal requests are
    distinguished, which the explorer does not do everywhere.
    """
    instance = evolve(instance, returning=frozenset())
    reference: Any = machine_of(policy).model(instance)
    machine, *parts = ENGINES[policy]
    return evolve(reference, canonical=_kept), machine(reference.ctx, *parts).model(instance)


def _kept(state: Any) -> Any:
    """The state as engines keep it: they do not know which blocks are unfilled."""
    return evolve(state, unfilled=None) if hasattr(state, "unfilled") else state


def first_difference(
    reference: MachineModel[Any, Any], engine: MachineModel[Any, Any]
) -> Any | None:
    """The first reachable state from which the engine has other transitions; None if none has.

    Both graphs are walked together: what follows a difference is not looked at.
    """
    pending = [*zip(reference.initial(), engine.initial(), strict=True)]
    seen: set[Any] = {state for state, _ in pending}
    for state, node in pending:  # grows while it is read
        edges, own_edges = _edges(reference, state), _edges(engine, node)
        if _kept(state) != node.state or edges.keys() != own_edges.keys():
            return state
        for action, after in edges:
            if after not in seen:
                seen.add(after)
                pending.append((after, own_edges[action, after]))
    return None


def _edges(model: MachineModel[Any, Any], state: Any) -> dict[tuple[str, Any], Any]:
    """The states after each transition, by its label and by what distinguishes the state."""
    edges = model.successors(state)
    return {(edge.action, model.canonical(edge.state)): edge.state for edge in edges}
