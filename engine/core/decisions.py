"""Decisions of a scheduler step, without the records of its states.

A simulation makes them from plans, a judged run from the records of its steps. Metrics, plots and
the simulated clock need no more.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Generic

from attrs import define, field

from engine.core.clock import Work
from engine.core.observing import StateObserver
from engine.core.scheduler import Ends, OutcomeT, PlanT, Scheduler, StateT
from spec.core.records import SomeState, SomeStep


@define(eq=False, kw_only=True)
class Decisions:
    """The decisions of a step.

    - `time`: simulated clock when it began. `work`: what it computed, with its kind.
    - `tokens`: tokens that it computed. `requests`: requests with such a token.
    - `sampled`: an id for each sampled token; tokens of a request are adjacent.
    - `finished`: ids of requests that left with all tokens. `aborted`: ids of those whose clients
      left since the step before.
    - `refusal`: the rule that first kept a request from being scheduled.
    - `transitions`: number of preemptions, pauses and other transitions.
    - `waiting`: length of the waiting queue after it. `is_idle`: no request was left.
    """

    index: int
    time: float
    work: Work
    tokens: int
    requests: int
    sampled: Sequence[str] = ()
    finished: Sequence[str] = ()
    aborted: Sequence[str] = ()
    refusal: str | None = None
    transitions: Mapping[str, int] = field(factory=dict)
    waiting: int = 0
    is_idle: bool = False

    @property
    def kind(self) -> str:
        """Prefill, decode or idle."""
        return self.work.kind

    def equals(self, other: "Decisions") -> bool:
        """True if both are the same step; transitions count where both have noted them."""
        noted = self.transitions.keys() & other.transitions.keys()
        return (
            (self.index, self.time, self.work, self.tokens, self.requests)
            == (other.index, other.time, other.work, other.tokens, other.requests)
            and [*self.sampled] == [*other.sampled]
            and [*self.finished] == [*other.finished]
            and [*self.aborted] == [*other.aborted]
            and (self.refusal, self.waiting, self.is_idle)
            == (other.refusal, other.waiting, other.is_idle)
            and all(self.transitions[name] == other.transitions[name] for name in noted)
        )

    @property
    def outputs(self) -> Sequence[str]:
        """Empty if the step sampled no token, like the outputs of a record."""
        return self.sampled


@define(eq=False, kw_only=True)
class Planned(Decisions):
    """Decisions of which there is no record; `look`: returns the record of the state after them."""

    look: Callable[[], SomeState]

    @property
    def after(self) -> SomeState:
        """The record of the state after the step, as long as no other step is taken."""
        return self.look()


class DecisionObserver(ABC, Generic[StateT, PlanT, OutcomeT]):
    """Watches one scheduler step by step, as a `StepObserver` does, and makes no records."""

    def __init__(self, scheduler: Scheduler[StateT, PlanT, OutcomeT]) -> None:
        self._scheduler = scheduler
        self._state = scheduler.state
        self._observer: StateObserver[SomeState] | None = None

    def begin(self) -> None:
        """A step begins; nothing has to be noted."""

    def end(
        self,
        plan: PlanT,
        outcome: OutcomeT,
        index: int,
        time: float,
        _ends: Ends = None,
        aborted: tuple[str, ...] = (),
    ) -> Planned:
        """The decisions of the last step, after its plan was applied.

        `aborted`: ids of requests that were aborted since the step before.
        """
        work, tokens, requests = self._work(plan, outcome)
        return Planned(
            index=index,
            time=time,
            work=work,
            tokens=tokens,
            requests=requests,
            look=self._look,
            sampled=outcome.sampled,
            finished=outcome.finished,
            aborted=aborted,
            refusal=plan.refusal,
            transitions=self._transitions(plan),
            waiting=len(self._state.queue),
            is_idle=not self._scheduler.has_requests,
        )

    def _look(self) -> SomeState:
        """The record of the scheduler's state; from the first one on, steps take longer."""
        self._observer = self._observer or self._state_observer()
        return self._observer.state()

    # Methods of the policy.

    @abstractmethod
    def _state_observer(self) -> StateObserver[SomeState]:
        """An observer of the scheduler's states."""

    @abstractmethod
    def _work(self, plan: PlanT, outcome: OutcomeT) -> tuple[Work, int, int]:
        """The work of the step, the number of its computed tokens and of its requests."""

    @abstractmethod
    def _transitions(self, plan: PlanT) -> Mapping[str, int]:
        """The number of preemptions, pauses and other transitions that metrics count."""


def decisions_of(step: SomeStep, work: Work) -> Decisions:
    """The decisions that the record of a step shows; `work`: what it computed."""
    after = step.after
    return Decisions(
        index=step.index,
        time=step.time,
        work=work,
        tokens=sum(step.scheduled.values()),
        requests=len(step.scheduled),
        sampled=tuple([id_ for id_, tokens in step.outputs.items() for _ in tokens]),
        finished=step.finished,
        aborted=step.aborted,
        refusal=step.refusal,
        transitions=Counter(event.transition for event in step.events),
        waiting=len(after.waiting),
        is_idle=after.is_idle,
    )
