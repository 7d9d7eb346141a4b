"""The engine with its environment, as a state graph: to be held against the reference's, whole.

States are schedulers, each step is taken by a copy; what tells them apart is what an observer sees
of them. What the device would sample is what each request samples when served alone.
"""

from collections.abc import Callable
from operator import attrgetter

from attrs import evolve, frozen

from checks.explore.environment import MachineModel, with_early_ends
from checks.explore.instance import Instance
from checks.explore.returning import with_blocks_in_order
from checks.explore.symmetry import without_names
from checks.policies.spyre.engine import sampled_alone
from checks.policies.spyre.model import alike_in, spyre_model
from engine.spyre.observing import Observer
from engine.spyre.scheduler import Scheduler
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context
from spec.spyre.state import State
from tests.engine.scenes import copied


@frozen(eq=False)
class Node:
    """A scheduler, which does not change any more, and what an observer sees of it."""

    scheduler: Scheduler
    state: State


@frozen
class Stepped:
    """A step of the engine: the scheduler that it left, the ids that sampled or finished."""

    after: Node
    outputs: tuple[str, ...]
    finished: tuple[str, ...]


@frozen
class EngineMachine:
    """The engine's scheduler as a machine: each transition changes a copy."""

    ctx: Context

    def initial(self) -> Node:
        """No request has arrived."""
        return _node(Scheduler(self.ctx.config))

    def arrive(self, node: Node, request_id: str) -> Node:
        """A request is handed in between two steps."""
        return self._changed(node, lambda scheduler: scheduler.add(self.ctx.requests[request_id]))

    def abort(self, node: Node, request_id: str) -> Node:
        """A client goes away between two steps."""
        return self._changed(node, lambda scheduler: scheduler.abort(request_id))

    def step(self, node: Node, ends: tuple[str, ...]) -> Stepped:
        """One scheduler step, in which these requests sample the end of sequence."""
        scheduler = copied(node.scheduler)
        plan = scheduler.schedule()
        outcome = scheduler.update(plan, sampled_alone(plan), ends)
        return Stepped(_node(scheduler), outcome.sampled, outcome.finished)

    @staticmethod
    def _changed(node: Node, change: Callable[[Scheduler], object]) -> Node:
        scheduler = copied(node.scheduler)
        change(scheduler)
        return _node(scheduler)


def _node(scheduler: Scheduler) -> Node:
    return Node(scheduler, Observer(scheduler).state())


def reference_model(instance: Instance[SpyreConfig]) -> MachineModel[Context, State]:
    """The reachable states of an instance with the numbers of their blocks.

    The explorer does not distinguish those; here each block that is handed out must be the same.
    Where clients come back there would be too many states.
    """
    named = without_names(instance, alike_in(instance))
    canonical = with_blocks_in_order if instance.returning else named
    return evolve(spyre_model(instance), canonical=canonical)


def engine_model(instance: Instance[SpyreConfig]) -> MachineModel[Context, Node]:
    """The reachable states of an instance as the engine has them, as `reference_model` has them.

    Raises:
        WorkloadError: a request of the instance could never be served.
    """
    reference = reference_model(instance)
    machine = EngineMachine(reference.ctx)
    return MachineModel(
        instance,
        machine,
        steps=with_early_ends(instance, machine.step),
        canonical=lambda node: reference.canonical(node.state),
        observed=attrgetter("state"),
    )
