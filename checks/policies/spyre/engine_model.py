"""The engine with its environment, as a state graph: to be held against the reference's, whole.

States are schedulers, each step is taken by a copy; what tells them apart is what an observer sees
of them. What the device would sample is what each request samples when served alone.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator
from itertools import combinations

import numpy as np
from attrs import frozen

from checks.explore.model import Transition
from checks.policies.spyre.model import Instance, SpyreModel
from engine.core.tensors import NO_TOKENS, Tensor
from engine.spyre.observing import snapshot
from engine.spyre.scheduler import DecodePlan, IdlePlan, Outcome, Plan, PrefillPlan, Scheduler
from spec.spyre.state import State


@frozen(eq=False)
class Node:
    """A scheduler, which nobody changes any more, and what an observer sees of it."""

    scheduler: Scheduler
    state: State


class EngineModel:
    """The reachable states of an instance as the engine has them; implements the explorer's model.

    Actions are named as those of `SpyreModel`, so that the graphs can be compared.
    """

    def __init__(self, instance: Instance) -> None:
        """Raises nothing that `SpyreModel` would not."""
        self.instance = instance
        self._reference = SpyreModel(instance)  # only to name interchangeable requests alike

    def initial(self) -> Iterable[Node]:
        """One state: nobody has arrived."""
        yield _node(Scheduler(self.instance.config))

    def successors(self, node: Node) -> Iterator[Transition[Node]]:
        """Every arrival, abort and step that may come next."""
        state = node.state
        known = {one.id for one in state.present} | state.finished | state.aborted
        for request in self.instance.requests:
            if request.id not in known:
                scheduler = node.scheduler.copy()
                scheduler.add(request)
                yield Transition(f"arrive {request.id}", _node(scheduler))
        for one in state.present:
            if one.id in self.instance.aborts:
                scheduler = node.scheduler.copy()
                scheduler.abort(one.id)
                yield Transition(f"abort {one.id}", _node(scheduler))
        if node.scheduler.has_requests:
            yield from self._steps(node)

    def _steps(self, node: Node) -> Iterator[Transition[Node]]:
        """The step in which nobody ends early, and one for each set of requests that do."""
        stepped, outcome = _step(node, ())
        yield Transition("step", stepped, fair=True)
        may_end = [
            one
            for one in outcome.sampled
            if one in self.instance.early_ends and one not in outcome.finished
        ]
        for count in range(1, len(may_end) + 1):
            for ending in combinations(may_end, count):
                stepped, _ = _step(node, ending)
                yield Transition(f"step, {' and '.join(ending)} ends", stepped, fair=True)

    def canonical(self, node: Node) -> Hashable:
        """The state with interchangeable requests named in the order of their places."""
        return self._reference.canonical(node.state)

    def unfinished(self, node: Node) -> bool:
        """True if a request is pending."""
        return node.scheduler.has_requests


def _node(scheduler: Scheduler) -> Node:
    return Node(scheduler, snapshot(scheduler))


def _step(node: Node, ends: Collection[str]) -> tuple[Node, Outcome]:
    scheduler = node.scheduler.copy()
    plan = scheduler.schedule()
    outcome = scheduler.update(plan, sampled_alone(plan), ends)
    return _node(scheduler), outcome


def sampled_alone(plan: Plan) -> Tensor:
    """What each request that samples in the step samples next if it is served alone."""
    match plan:
        case PrefillPlan(chunk=chunk, request=one) if chunk.is_last:
            return np.array([one.request.output_token(one.prefill_len - one.request.prompt_len)])
        case DecodePlan(rows=rows):
            pairs = zip(rows.members, rows.generated().tolist(), strict=True)
            return np.array([one.request.output_token(count) for one, count in pairs], np.int64)
        case PrefillPlan() | IdlePlan():
            return NO_TOKENS
