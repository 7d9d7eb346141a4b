"""Serve a workload step by step: arrivals and aborts as written, the clock, every rule judged."""

from collections.abc import Iterable, Iterator, Sequence

from attrs import define, evolve, field

from reference.spyre.machine import SpyreMachine
from spec.config import Config
from spec.records import PREFILL, Context, Step
from spec.requests import Request
from spec.rules import Kind, Rule, applicable, judge
from spec.state import State


def step_time(config: Config, kind: str) -> float:
    """Simulated time units that a step takes; an idle step takes as long as a decode step."""
    return config.prefill_time if kind == PREFILL else config.decode_time


def serve(machine: SpyreMachine, requests: Sequence[Request]) -> Iterator[Step]:
    """Every step until all requests have arrived and left.

    A request with a step number arrives before that step, one with a time before the first step
    that begins then or later; while nobody is there the clock is put forward to the next time.
    A client that goes away before its request arrives never sends it.
    """
    arrivals = _Arrivals(requests)
    leaving = sorted(
        (request for request in requests if request.abort_at is not None),
        key=lambda request: request.abort_at or 0,
        reverse=True,
    )
    state, index, time = machine.initial(), 0, 0.0
    while arrivals.pending or not state.is_idle:
        if state.is_idle:
            time = max(time, arrivals.next_time())
        for request in arrivals.due(index, time):
            state = machine.arrive(state, request.id)
        state, aborted = _abort(machine, state, leaving, index)
        step = machine.step(state, index=index, time=time)
        yield evolve(step, aborted=aborted) if aborted else step
        state, index = step.after, index + 1
        time += step_time(machine.ctx.config, step.kind)


class _Arrivals:
    """Requests that have not arrived, the next one last: by step number and by time."""

    def __init__(self, requests: Iterable[Request]) -> None:
        listed = [request for request in requests if not _gone_before(request)]
        self._by_time = [one for one in listed if one.arrival_time is not None]
        self._by_step = [one for one in listed if one.arrival_time is None]
        self._by_time.sort(key=lambda one: one.arrival_time or 0.0)
        self._by_step.sort(key=lambda one: one.arrival)
        self._by_time.reverse()
        self._by_step.reverse()

    @property
    def pending(self) -> bool:
        """True if somebody has yet to arrive."""
        return bool(self._by_time or self._by_step)

    def next_time(self) -> float:
        """The next arrival on the clock; 0 if the next ones are given by step."""
        if self._by_step or not self._by_time:
            return 0.0
        return self._by_time[-1].arrival_time or 0.0

    def due(self, index: int, time: float) -> Iterator[Request]:
        """Who arrives before step `index`, which begins at `time`; each only once."""
        while self._by_step and self._by_step[-1].arrival <= index:
            yield self._by_step.pop()
        while self._by_time and (self._by_time[-1].arrival_time or 0.0) <= time:
            yield self._by_time.pop()


def _gone_before(request: Request) -> bool:
    """True if the client goes away before the step at which the request would arrive."""
    return (
        request.abort_at is not None
        and request.arrival_time is None
        and request.abort_at < request.arrival
    )


def _abort(
    machine: SpyreMachine, state: State, leaving: list[Request], index: int
) -> tuple[State, tuple[str, ...]]:
    """The state without those whose clients go away before this step, if they are there."""
    aborted = []
    while leaving and (leaving[-1].abort_at or 0) <= index:
        request_id = leaving.pop().id
        if any(one.id == request_id for one in state.present):
            state = machine.abort(state, request_id)
            aborted.append(request_id)
    return state, tuple(aborted)


@define
class Broken:
    """A rule that a step broke, and what was found."""

    step: int
    rule: Rule
    found: str


@define
class Judge:
    """Holds every applicable rule against each step; keeps the first few breaches."""

    ctx: Context
    keep: int = 10
    judged: int = 0
    broken: list[Broken] = field(factory=list)
    rules: list[Rule] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.rules = [
            rule for rule in applicable(self.ctx.config) if rule.kind is not Kind.EVENTUALLY
        ]

    def observe(self, step: Step) -> None:
        """Judge a step and the state that it left; after aborts also the state it started from."""
        self.judged += 1
        for rule, found in judge(self.rules, self.ctx, step):
            self._note(step, rule, found)
        if step.aborted:
            for rule in self.rules:
                found_before = rule.found_in_state(self.ctx, step.before)
                if found_before is not None:
                    self._note(step, rule, found_before)

    def _note(self, step: Step, rule: Rule, found: str) -> None:
        if len(self.broken) < self.keep:
            self.broken.append(Broken(step.index, rule, found))
