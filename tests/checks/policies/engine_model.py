"""An engine with its environment as a state graph, to compare with the reference's graph.

States are schedulers, each step is taken by a copy; what tells them apart is what an observer sees
of them. What the device would sample is what each request samples when served alone.
"""

from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import networkx as nx
from attrs import frozen

from checks.explore.environment import MachineModel, with_early_ends
from checks.explore.graph import state_graph
from checks.explore.instance import Instance
from engine.core.scheduler import Scheduler
from engine.core.tensors import Tensor
from spec.core.configuration import PolicyConfig
from spec.core.records import SomeState
from tests.checks.faults.patches import Wrong
from tests.engine.scenes import copied

if TYPE_CHECKING:
    Graph = nx.DiGraph[Hashable]

SomeScheduler: TypeAlias = Scheduler[Any, Any, Any]


@frozen(eq=False)
class Node:
    """An immutable scheduler and its observed state."""

    scheduler: SomeScheduler
    state: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)


@frozen
class Stepped:
    """A step of the engine: the scheduler that it left, the ids that sampled or finished."""

    after: Node
    outputs: tuple[str, ...]
    finished: tuple[str, ...]


@frozen
class EngineMachine:
    """The engine's scheduler as a machine: each transition changes a copy.

    `observed`: the observed state of a scheduler. `sampled`: the tokens of a plan.
    """

    ctx: Any
    new: Callable[[Any], SomeScheduler]
    observed: Callable[[Any], SomeState]
    sampled: Callable[[Any, Any], Tensor]

    def initial(self) -> Node:
        """No request has arrived."""
        return self.node(self.new(self.ctx.config))

    def arrive(self, node: Node, request_id: str) -> Node:
        """A request arrives between two steps."""
        return self.changed(node, lambda scheduler: scheduler.add(self.ctx.requests[request_id]))

    def abort(self, node: Node, request_id: str) -> Node:
        """A client goes away between two steps."""
        return self.changed(node, lambda scheduler: scheduler.abort(request_id))

    def step(self, node: Node, ends: tuple[str, ...]) -> Stepped:
        """One scheduler step, in which these requests sample the end of sequence."""
        scheduler = copied(node.scheduler)
        plan = scheduler.schedule()
        outcome = scheduler.update(plan, self.sampled(scheduler, plan), ends)
        return Stepped(self.node(scheduler), outcome.sampled, outcome.finished)

    def changed(self, node: Node, change: Callable[[Any], object]) -> Node:
        scheduler = copied(node.scheduler)
        change(scheduler)
        return self.node(scheduler)

    def node(self, scheduler: SomeScheduler) -> Node:
        return Node(scheduler, self.observed(scheduler))


def graphs(
    model: MachineModel[Any, Any],
    machine: EngineMachine,
    canonical: Callable[[Any], Hashable] = lambda state: state,
) -> "tuple[Graph, Graph]":
    """The reference's graph, of its model, and that of the engine.

    Raises:
        WorkloadError: a request of the instance could never be served.
    """
    instance: Instance[PolicyConfig] = model.instance
    engine = MachineModel(
        instance,
        machine,
        steps=with_early_ends(instance, machine.step),
        canonical=lambda node: canonical(node.state),
        observed=attrgetter("state"),
    )
    return state_graph(model), state_graph(engine)


def head_first(right: Wrong, blocks: Any, table: Sequence[int]) -> None:
    """Fault: a block table is released from its head on."""
    right(blocks, table[::-1])
