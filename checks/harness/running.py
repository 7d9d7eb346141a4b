"""Serve a workload step by step: arrivals and aborts as written, the clock, every rule judged."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from attrs import define, field

from checks.fuzz.reference import ReferenceTarget
from checks.policies import Server, policy_of
from checks.policies.policy import By
from engine.core.clock import CostModel
from reference.spyre.machine import SpyreMachine
from spec.core.configuration import PolicyConfig
from spec.core.records import PREFILL, SomeContext, SomeState, SomeStep
from spec.core.requests import Request
from spec.core.rule import AnyRule, Kind, judge
from spec.spyre.records import Step


def step_time(config: PolicyConfig, kind: str) -> float:
    """Simulated time units of a step that costs nothing beyond its kind."""
    return config.prefill_time if kind == PREFILL else config.decode_time


def serve(machine: SpyreMachine, requests: Sequence[Request]) -> Iterator[Step]:
    """Every step of the Spyre reference, see `serve_with`."""
    target = ReferenceTarget(machine, machine.initial())
    yield from serve_with(target, duration_of(machine.ctx.config), requests)


def duration_of(config: PolicyConfig, cost: CostModel | None = None) -> Callable[[SomeStep], float]:
    """What steps under a configuration take; `cost`: by default, of steps alone."""
    charged = cost or CostModel.from_mapping({}, config)
    work = policy_of(config).work
    return lambda step: work(config, step).duration(charged)


def serve_with(
    target: Server[By], duration: Callable[[By], float], requests: Sequence[Request]
) -> Iterator[By]:
    """Every step until all requests have arrived and left; `duration`: of a step on the clock.

    A request with a step number arrives before that step, one with a time before the first step
    that begins then or later; while nobody is there the clock is put forward to the next time.
    A client that goes away before its request arrives never sends it.
    """
    clients = Clients(requests)
    index, time, idle = 0, 0.0, True
    while clients.pending or not idle:
        if idle:
            time = max(time, clients.next_time())
        for newcomer in clients.arriving(index, time):
            target.arrive(newcomer)
        for leaver in clients.leaving(index):
            target.abort(leaver)
        step = target.step(index, time)
        yield step
        index, idle = index + 1, step.after.is_idle
        time += duration(step)


def _by_time_of(
    requests: Iterable[Request], when: Callable[[Request], float | None]
) -> list[Request]:
    """The requests for which there is such a moment, the earliest last."""
    dated = [(moment, one) for one in requests if (moment := when(one)) is not None]
    return [one for _, one in sorted(dated, key=lambda pair: pair[0])][::-1]


class Clients:
    """What the clients of a workload do between the steps, each thing once.

    Before a step first the arriving are taken, then the leaving.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        # The next one last: by time, and by step number.
        self._by_time = _by_time_of(requests, lambda one: one.arrival_time)
        self._by_step = _by_time_of(
            (one for one in requests if one.arrival_time is None), lambda one: one.arrival
        )
        self._leaving = _by_time_of(requests, lambda one: one.abort_at)
        self._cancelled: set[str] = set()

    @property
    def pending(self) -> bool:
        """True if somebody has yet to arrive."""
        return bool(self._by_time or self._by_step)

    def next_time(self) -> float:
        """The next arrival on the clock; 0 if the next ones are given by step."""
        if self._by_step or not self._by_time:
            return 0.0
        return self._by_time[-1].arrival_time or 0.0

    def arriving(self, index: int, time: float) -> Iterator[str]:
        """Who arrives before step `index`, which begins at `time`."""
        while self._by_step and self._by_step[-1].arrival <= index:
            yield self._next_of(self._by_step)
        while self._by_time and (self._by_time[-1].arrival_time or 0.0) <= time:
            yield self._next_of(self._by_time)

    def leaving(self, index: int) -> Iterator[str]:
        """Whose client goes away before step `index`; if it has not arrived yet, it never will."""
        while self._leaving and (self._leaving[-1].abort_at or 0) <= index:
            leaver = self._leaving.pop().id
            self._cancelled.add(leaver)
            self._drop_cancelled()
            yield leaver

    def _next_of(self, queue: list[Request]) -> str:
        request = queue.pop()
        self._drop_cancelled()
        return request.id

    def _drop_cancelled(self) -> None:
        """So that nobody waits for a client that has gone: the next ones are sure to come."""
        for queue in (self._by_time, self._by_step):
            while queue and queue[-1].id in self._cancelled:
                queue.pop()


@define
class Broken:
    """A rule that a step broke, and what was found."""

    step: int
    rule: AnyRule
    found: str


def judgeable(config: PolicyConfig) -> list[AnyRule]:
    """The rules that can be held against single steps and states."""
    rules: list[AnyRule] = policy_of(config).registry.applicable(config)
    return [rule for rule in rules if rule.kind is not Kind.EVENTUALLY]


@define
class Judge:
    """Holds every applicable rule, or those given, against each step.

    `keep`: of each rule so many breaches, the first ones.
    """

    ctx: SomeContext
    keep: int = 10
    judged: int = 0
    broken: list[Broken] = field(factory=list)
    rules: list[AnyRule] = field()
    _left: SomeState | None = field(default=None, init=False)

    @rules.default
    def _every_rule(self) -> list[AnyRule]:
        return judgeable(self.ctx.config)

    def observe(self, step: SomeStep) -> None:
        """Judge a step, the state that it left, and what happened since the step before."""
        self.judged += 1
        if self._left is not None and self._left is not step.before:
            self._between(step, self._left)
        elif self._left is None or step.aborted:
            self._before(step)
        self._left = step.after
        for rule, found in judge(self.rules, self.ctx, step):
            self._note(step, rule, found)

    def _between(self, step: SomeStep, left: SomeState) -> None:
        """Arrivals and aborts, and the state that they made of the one that was left."""
        for rule in self.rules:
            for find in (rule.found_between, rule.found_after):
                found = find(self.ctx, left, step.before)
                if found is not None:
                    self._note(step, rule, found)

    def _before(self, step: SomeStep) -> None:
        """The first state, of which nothing is known."""
        for rule in self.rules:
            found = rule.found_in_state(self.ctx, step.before)
            if found is not None:
                self._note(step, rule, found)

    def _note(self, step: SomeStep, rule: AnyRule, found: str) -> None:
        if sum(one.rule is rule for one in self.broken) < self.keep:
            self.broken.append(Broken(step.index, rule, found))
