"""What the reference does in an episode, and the script that makes a driver do the same."""

from collections.abc import Iterator
from typing import Any

from attrs import define, evolve, field, frozen

from checks.conformance.counterpart import Counterpart, Machine, Step
from checks.conformance.counterparts import counterpart_of
from checks.fuzz.cases import Case
from checks.harness.driver.protocol import Action
from checks.harness.running import Clients, step_time
from spec.core.records import IDLE

_REST = 2  # idle steps at the end, in which nothing may happen
_PATIENCE = 3  # times the steps that everybody would need one after the other


@frozen
class Script:
    """An episode: the reference's steps, and for each what the environment does around it.

    `over`: everybody has left and nobody is to come; else the bound on steps was reached.
    """

    machine: Machine
    steps: tuple[Step, ...]
    actions: tuple[Action, ...]
    over: bool


def script_of(case: Case, *, aborts_while_running: bool) -> Script:
    """The case as the reference serves it.

    Aborts come between two steps; `aborts_while_running`: where that makes no other difference
    they come in the step before, while the model runs.

    Raises:
        WorkloadError: a request that could never be served.
        GuardError: the reference stops, which is an error of ours.
    """
    counterpart = counterpart_of(case.config)
    machine = counterpart.machine(case)
    run = _Run(case, counterpart, machine, aborts_while_running, machine.initial())
    steps, actions = [], []
    for step, action in run.steps():
        steps.append(step)
        actions.append(action)
    return Script(machine, tuple(steps), tuple(actions), run.over)


def most_steps(case: Case) -> int:
    """A bound that no episode reaches unless somebody waits for ever."""
    at_once = counterpart_of(case.config).tokens_at_once(case.config)
    alone = sum(1 + one.prompt_len // at_once + one.max_tokens for one in case.requests)
    last = max((one.arrival for one in case.requests), default=0)
    return last + _PATIENCE * alone + 10


@define
class _Run:
    case: Case
    counterpart: Counterpart
    machine: Machine
    aborts_while_running: bool
    state: Any
    over: bool = field(default=False, init=False)
    _leaving: list[str] = field(factory=list, init=False)  # who leaves before the next step

    def steps(self) -> Iterator[tuple[Step, Action]]:
        """Each step with what the environment did around it."""
        clients, time, rest = Clients(self.case.requests), 0.0, _REST
        self._leaving = list(clients.leaving(0))
        for index in range(most_steps(self.case)):
            if self.state.is_idle:
                time = max(time, clients.next_time())
            arrived = self._arrivals(clients, index, time)
            aborted = self._aborts()
            self.over = not clients.pending and self.state.is_idle
            if self.over and rest == 0:
                return
            rest -= self.over
            step = self.machine.step(self.state, index=index, time=time)
            if aborted:
                step = evolve(step, aborted=aborted)
            step, running = self._with_aborts_while_running(step, list(clients.leaving(index + 1)))
            self.state = step.after
            time += step_time(self.case.config, step.kind)
            others = self.counterpart.surroundings(step)
            yield step, Action(arrived, aborted, running, **others)

    def _arrivals(self, clients: Clients, index: int, time: float) -> tuple[str, ...]:
        arrived = tuple(clients.arriving(index, time))
        for one in arrived:
            self.state = self.machine.arrive(self.state, one)
        return arrived

    def _aborts(self) -> tuple[str, ...]:
        present = {row.id for row in self.state.present}
        aborted = tuple(one for one in self._leaving if one in present)
        for one in aborted:
            self.state = self.machine.abort(self.state, one)
        return aborted

    def _with_aborts_while_running(
        self, step: Step, leaving: list[str]
    ) -> tuple[Step, tuple[str, ...]]:
        """The step with those gone, and without the tokens, whose clients leave while it runs."""
        running: tuple[str, ...] = ()
        if leaving and self.aborts_while_running and step.kind != IDLE:
            step, running = self.counterpart.leave(self.machine, self.state, step, leaving)
        self._leaving = [one for one in leaving if one not in running]
        return step, running
