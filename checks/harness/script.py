"""The script of an episode: the reference's steps and the actions for the system under test."""

from collections.abc import Iterator
from math import ceil
from typing import Any

from attrs import define, evolve, field, frozen

from checks.harness.case import Case
from checks.harness.clients import Clients
from checks.harness.policy import evidence_of
from checks.harness.reference import Reference
from checks.harness.system import Action, Step, Taken
from engine.core.clock import step_time
from reference.core.guards import GuardError
from spec.core.records import IDLE

_REST = 2  # idle steps at the end, in which no scheduler may act
_PATIENCE = 3  # times the steps that all requests need one after the other


def most_steps(case: Case) -> int:
    """A bound on steps that an episode reaches only if a request waits for ever."""
    steps_alone = evidence_of(case.config.policy).steps_alone
    alone = sum(steps_alone(case.config, request) for request in case.requests)
    last = max((request.arrival for request in case.requests), default=0)
    return last + _idle_steps(case) + _PATIENCE * alone + 10


def _idle_steps(case: Case) -> int:
    """Steps that may pass until clients come by the clock, one after the other."""
    config, following = case.config, [row for row in case.requests if row.after is not None]
    first = max((row.arrival_time or 0 for row in case.requests if row.after is None), default=0)
    waits = first + sum(row.arrival_time or 0 for row in following)
    took = step_time(config, IDLE)
    return ceil(waits / took) if took > 0 else 0


@frozen
class Scope:
    """The kinds of action in a script, limited to those that the system supports.

    `aborts_while_running`: clients leave while the model runs. `aborts_of_gone`: requests that have
    left are aborted, too. `ends_named`: actions name the requests that end. `bound`: the most
    steps; None: `most_steps`.
    """

    aborts_while_running: bool = False
    aborts_of_gone: bool = False
    ends_named: bool = False
    bound: int | None = None


@define
class Script:
    """An episode of a case: an iterator over the actions, one for each step of the reference.

    `steps`: the reference's steps so far; `taken`: the system's. `over`: all requests have arrived
    and left. If it is false at the end, a bound on steps was reached, or the reference stopped at
    the guard `error`, or the script `is_part` of what the requests need. `judged`: the steps that
    rules judge; None: all of them.

    Raises:
        WorkloadError: a request can never be served.
    """

    is_part = False
    judged = None

    case: Case
    scope: Scope = field(factory=Scope)
    steps: list[Step] = field(factory=list, init=False)
    taken: list[Taken] = field(factory=list, init=False)
    actions: list[Action] = field(factory=list, init=False)
    over: bool = field(default=False, init=False)
    error: GuardError | None = field(default=None, init=False)
    reference: Reference = field(init=False)
    _clients: Clients = field(init=False)
    _episode: Iterator[Action] = field(init=False)
    _time: float = field(default=0.0, init=False)
    _leaving: list[str] = field(factory=list, init=False)  # before the next step

    def __attrs_post_init__(self) -> None:
        self.reference = evidence_of(self.case.config.policy).reference(self.case)
        self._clients = Clients(self.case.requests)
        self._episode = self._all_actions()

    @property
    def ctx(self) -> Any:
        """The context of the rules."""
        return self.reference.machine.ctx

    def __iter__(self) -> Iterator[Action]:
        """The script itself; each action is returned once."""
        return self

    def __next__(self) -> Action:
        """The action of the next step."""
        try:
            self.actions.append(next(self._episode))
        except GuardError as error:
            self.error = error
            raise StopIteration from None
        return self.actions[-1]

    def _all_actions(self) -> Iterator[Action]:
        self._leaving = list(self._clients.leaving(0))
        rest = _REST
        for index in range(self.scope.bound or most_steps(self.case)):
            arrived = self._arrivals(index)
            aborted = self._aborts()
            self.over = not self._clients.pending and self.reference.state.is_idle
            if self.over and rest == 0:
                return
            rest -= self.over
            step, leavers = self._step(index)
            ends = self.reference.ends(step) if self.scope.ends_named else None
            if ends is not None:
                step = evolve(
                    step,
                    ended=tuple(request_id for request_id in step.outputs if request_id in ends),
                )
            self.steps.append(step)
            surroundings = self.reference.surroundings(step)
            yield Action(arrived, aborted, leavers, ends, time=self._time, **surroundings)
            self._time += step_time(self.case.config, step.kind)
            self._clients.after(step.finished, self._time)

    def _arrivals(self, index: int) -> tuple[str, ...]:
        if self.reference.state.is_idle:
            self._time = max(self._time, self._clients.next_time())
        arrived = tuple(self._clients.arriving(index, self._time))
        for request in arrived:
            self.reference.arrive(request)
        return arrived

    def _aborts(self) -> tuple[str, ...]:
        if not self._leaving:
            return ()
        present = {row.id for row in self.reference.state.present}
        of_gone = self.scope.aborts_of_gone
        aborted = tuple(
            request_id for request_id in self._leaving if of_gone or request_id in present
        )
        for request_id in aborted:
            self.reference.abort(request_id)
        return aborted

    def _step(self, index: int) -> tuple[Step, tuple[str, ...]]:
        """The next step, and the requests whose clients left while it ran."""
        leaving = list(self._clients.leaving(index + 1))
        while_running = leaving if self.scope.aborts_while_running else ()
        step, leavers = self.reference.scripted_step(index, self._time, while_running)
        self._leaving = [request_id for request_id in leaving if request_id not in leavers]
        return step, leavers
