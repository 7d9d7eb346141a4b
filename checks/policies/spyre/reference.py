"""The Spyre reference serving a case, in which grammars become ready."""

from collections.abc import Iterable
from typing import Any

from attrs import define, evolve

from checks.harness.case import Case
from checks.harness.grammars import compile_times
from checks.harness.reference import Reference
from checks.harness.system import Action
from checks.remembered import machine_remembering
from reference.spyre.machine import SpyreMachine
from spec.core.records import Event
from spec.spyre.records import Step


@define
class SpyreReference(Reference):
    """The machine, told between two steps whose grammars are ready."""

    @staticmethod
    def of(case: Case) -> "SpyreReference":
        """The reference for a case.

        Raises:
            WorkloadError: a request could never be served.
        """
        return SpyreReference(
            machine_remembering(SpyreMachine.of(case.config, case.requests)), case
        )

    def surroundings(self, step: Step) -> dict[str, Any]:
        """The grammars that were ready before the step, as keys of an action."""
        compiled = tuple(event.id for event in step.happened("compiled"))
        return {"accepted": {}, "compiled": compiled} if self._has_grammars else {}

    @property
    def _has_grammars(self) -> bool:
        return any(request.grammar for request in self.case.requests)

    def _as_the_case_says(self, index: int, time: float) -> Step:
        """One scheduler step, after the grammars that are ready before it."""
        every, pending = compile_times(self.case), sorted(self.state.compiling)
        ready = self._made_ready(id_ for id_ in pending if index % every.get(id_, 1) == 0)
        return _with_events(ready, super()._as_the_case_says(index, time))

    def _taken(self, index: int, action: Action) -> Step:
        """One scheduler step; by default all grammars are ready before it."""
        named = sorted(self.state.compiling) if action.accepted is None else action.compiled
        ready = self._made_ready(id_ for id_ in named if id_ in self.state.compiling)
        return _with_events(ready, super()._taken(index, action))

    def _made_ready(self, ids: Iterable[str]) -> tuple[Event, ...]:
        """Make these grammars ready; the events that say so."""
        events = []
        for request_id in [*ids]:
            self.state = self.machine.compiled(self.state, request_id)
            events.append(Event("compiled", request_id, ""))
        return tuple(events)


def _with_events(events: tuple[Event, ...], step: Step) -> Step:
    return evolve(step, events=(*events, *step.events)) if events else step
