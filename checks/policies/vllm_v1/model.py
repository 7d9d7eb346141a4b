"""The vLLM V1 machine with its environment, as a state graph to explore.

The scheduler is deterministic; what is not is the environment: arrivals and aborts, who samples
the end of sequence, how many drafts are accepted, whether and when a connector's load ends.
"""

from collections.abc import Hashable, Iterable, Iterator
from itertools import product
from typing import TypeAlias

from attrs import evolve, frozen

from checks.explore.environment import arrivals_and_aborts
from checks.explore.instance import Instance
from checks.explore.model import Transition
from checks.explore.properties import Properties, properties_of_rules
from reference.vllm_v1.machine import VllmV1Machine
from reference.vllm_v1.step import Environment
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import Context, Load, Sequence, State, Step
from spec.vllm_v1.rules import applicable

VllmV1Instance: TypeAlias = Instance[VllmV1Config]


@frozen
class Choice:
    """What the environment decides for one request in a step."""

    id: str
    accepted: int = 0
    ends: bool = False
    loses: bool = False

    def __str__(self) -> str:
        told = {
            f"accepts {self.accepted}": self.accepted,
            "ends": self.ends,
            "loses its load": self.loses,
        }
        words = " and ".join(word for word, is_so in told.items() if is_so)
        return f"{self.id} {words}" if words else ""


class VllmV1Model:
    """The reachable states of an instance; implements the explorer's model."""

    def __init__(self, instance: VllmV1Instance) -> None:
        """The model of the reference machine.

        Raises:
            WorkloadError: a request of the instance could never be served.
        """
        self.instance = instance
        self.machine = VllmV1Machine.of(instance.config, instance.requests, instance.external)

    @property
    def ctx(self) -> Context:
        """What the rules look up."""
        return self.machine.ctx

    def initial(self) -> Iterable[State]:
        """One state: nobody has arrived."""
        yield self.machine.initial()

    def successors(self, state: State) -> Iterator[Transition[State]]:
        """Every arrival, abort, end of a load and step that may come next."""
        yield from arrivals_and_aborts(self.instance, self.machine, state)
        yield from self._loads(state)
        if state.present:
            yield from self._steps(state)

    def _loads(self, state: State) -> Iterator[Transition[State]]:
        """Each load may end; that one of them does is the environment's duty."""
        for one in (*state.skipped, *state.draining):
            if one.load is Load.LOADING:
                loaded = self.machine.end_load(state, one.id)
                yield Transition(f"loaded {one.id}", loaded, fair=True)
                if one.id in self.instance.failing:
                    lost = self.machine.end_load(state, one.id, failed=True)
                    yield Transition(f"lost {one.id}", lost)

    def _steps(self, state: State) -> Iterator[Transition[State]]:
        """A step for each combination of what the environment may decide, one leaver at most.

        While somebody loads, a step that changes nothing is none: the scheduler waits.
        """
        loads = any(one.load is Load.LOADING for one in (*state.skipped, *state.draining))
        usual = self.machine.step(state, Environment(ends=lambda _row: False))
        choices = [list(self._choices(usual, one)) for one in usual.scheduled]
        may_leave = [one.id for one in usual.planned.present if one.id in self.instance.leavers]
        for leavers in ((), *((one,) for one in may_leave)):
            for combination in product(*choices):
                step = self.machine.step(state, _environment(combination, leavers))
                if step.after != state or not loads:
                    yield _as_transition(step, combination)

    def _choices(self, step: Step, request_id: str) -> Iterator[Choice]:
        """What may come of one request's tokens; `step` is the one without surprises."""
        row = next(one for one in step.planned.running if one.id == request_id)
        drafts = 0 if request_id in step.admitted else step.drafts.get(request_id, 0)
        for accepted in range(drafts + 1):
            yield Choice(request_id, accepted)
        samples = row.computed + step.scheduled[request_id] >= row.tokens
        has_more = row.generated + 1 < self.ctx.requests[request_id].max_tokens
        if samples and has_more and request_id in self.instance.early_ends:
            yield Choice(request_id, ends=True)
        if step.external.get(request_id, 0) and request_id in self.instance.failing:
            yield Choice(request_id, loses=True)

    def canonical(self, state: State) -> Hashable:
        """The state itself: requests are told apart."""
        return state

    def unfinished(self, state: State) -> bool:
        """True if a request is pending."""
        return not state.is_idle


def _environment(choices: Iterable[Choice], leavers: tuple[str, ...]) -> Environment:
    by_id = {choice.id: choice for choice in choices}

    def accepted(row: Sequence, drafts: int) -> int:
        return min(by_id[row.id].accepted, drafts)

    return Environment(
        ends=lambda row: by_id[row.id].ends,
        accepted=accepted,
        loses=lambda request_id: by_id[request_id].loses,
        leavers=leavers,
    )


def _as_transition(step: Step, choices: Iterable[Choice]) -> Transition[State]:
    """The edge of a step; the label tells what the environment decided."""
    listed = list(choices)
    told = [str(one) for one in listed if str(one)] + [f"{one} leaves" for one in step.leavers]
    label = ", ".join(["step", *told])
    ended = tuple(one.id for one in listed if one.ends)
    return Transition(label, step.after, record=evolve(step, ended=ended), fair=True)


def properties_of(model: VllmV1Model) -> Properties[State]:
    """The rules that apply to the instance."""
    return properties_of_rules(applicable(model.instance.config), model.ctx, Step)
