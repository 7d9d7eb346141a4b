"""The reference as a system: a machine and its current state."""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, evolve, field

from checks.harness.case import Case
from checks.harness.system import Action, Step
from spec.core.records import IDLE


@define
class Reference:
    """A machine that serves a case; implements `Scheduler`.

    Policies whose environment does more than end requests extend this class.
    """

    machine: Any
    case: Case
    state: Any = field(init=False)
    _aborted: list[str] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.state = self.machine.initial()

    def arrive(self, request_id: str) -> None:
        """Add a request between two steps."""
        self.state = self.machine.arrive(self.state, request_id)

    def abort(self, request_id: str) -> None:
        """Abort a request between two steps; no effect if it has left."""
        if any(row.id == request_id for row in self.state.present):
            self.state = self.machine.abort(self.state, request_id)
            self._aborted.append(request_id)

    def step(self, index: int, action: Action) -> Step:
        """Take one scheduler step with the environment that the action describes."""
        return self._finished(self._taken(index, action))

    def scripted_step(
        self, index: int, time: float, leaving: Sequence[str]
    ) -> tuple[Step, tuple[str, ...]]:
        """Take one scheduler step with the environment that the case describes.

        `leaving`: requests whose clients leave while the step runs, if possible. Returns the step
        and the requests that left.
        """
        step = self._as_the_case_says(index, time)
        leavers: tuple[str, ...] = ()
        if leaving and step.kind != IDLE:
            step, leavers = self.with_leavers(step, leaving)
        return self._finished(step), leavers

    def surroundings(self, step: Step) -> Mapping[str, Any]:
        """Further fields of the step's action, beyond arrivals, aborts and ends."""
        return {}

    def ends(self, step: Step) -> tuple[str, ...] | None:
        """The requests that end in the step, for its action; None if each ends where it says."""
        finished: tuple[str, ...] = step.finished
        return finished

    def with_leavers(self, step: Step, leaving: Sequence[str]) -> tuple[Step, tuple[str, ...]]:
        """The step with aborts while it runs, without the leavers' tokens; and the leavers.

        No client leaves in a step in which a request finishes: the free list would depend on the
        order of the two.
        """
        present = {row.id for row in step.after.present}
        leavers = tuple(
            request_id for request_id in leaving if request_id in present and not step.finished
        )
        after = step.after
        for request_id in leavers:
            after = self.machine.abort_running(after, request_id)
        outputs = {
            request_id: tokens
            for request_id, tokens in step.outputs.items()
            if request_id not in leavers
        }
        return evolve(step, after=after, outputs=outputs), leavers

    def _as_the_case_says(self, index: int, time: float) -> Step:
        return self.machine.step(self.state, index=index, time=time)

    def _taken(self, index: int, action: Action) -> Step:
        if action.ends is None:
            step = self.machine.step(self.state, index=index, time=action.time)
        else:
            ends = frozenset(action.ends)
            step = self.machine.step(self.state, lambda row: row.id in ends, index, action.time)
            step = evolve(
                step, ended=tuple(request_id for request_id in step.outputs if request_id in ends)
            )
        return self.with_leavers(step, action.abort_running)[0] if action.abort_running else step

    def _finished(self, step: Step) -> Step:
        """The step with the aborts before it; its final state becomes the current one."""
        self.state = step.after
        if not self._aborted:
            return step
        step = evolve(step, aborted=tuple(self._aborted))
        self._aborted.clear()
        return step
