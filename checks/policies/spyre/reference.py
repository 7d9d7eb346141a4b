"""The Spyre reference serving a case, in which grammars become ready and images are encoded."""

from collections.abc import Container, Iterable, Mapping
from typing import Any

from attrs import define, evolve

from checks.harness.case import Case
from checks.harness.reference import Reference
from checks.harness.system import Action
from checks.remembered import machine_remembering
from reference.spyre.machine import SpyreMachine
from spec.core.records import Event
from spec.spyre.records import Step

_AWAITED = ("compiled", "encoded", "unencodable")  # events, and keys of an action


@define
class SpyreReference(Reference):
    """The machine, told between two steps whose grammars are ready and whose images are encoded."""

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
        """The grammars and images that were ready before the step, as keys of an action."""
        if not any(request.grammar or request.has_images for request in self.case.requests):
            return {}
        ready = {what: tuple(event.id for event in step.happened(what)) for what in _AWAITED}
        return {"accepted": {}, **ready}

    def _as_the_case_says(self, index: int, time: float) -> Step:
        """One scheduler step, after the grammars and images that are ready before it."""
        times = {
            "compiled": self.case.times("grammars"),
            "encoded": self.case.times("encodings"),
            "unencodable": self.case.times("unencodable"),
        }
        awaited = self._awaited(times["unencodable"])
        ready = {
            what: [id_ for id_ in ids if index % times[what].get(id_, 1) == 0]
            for what, ids in awaited.items()
        }
        return _with_events(self._made_ready(ready), super()._as_the_case_says(index, time))

    def _taken(self, index: int, action: Action) -> Step:
        """One scheduler step; by default all grammars are ready before it, all images encoded."""
        ready = self._awaited(action.unencodable)
        if action.accepted is not None:
            ready = {
                what: [id_ for id_ in ids if id_ in getattr(action, what)]
                for what, ids in ready.items()
            }
        return _with_events(self._made_ready(ready), super()._taken(index, action))

    def _awaited(self, failing: Container[str]) -> dict[str, list[str]]:
        """The requests whose grammars are compiled, whose images are encoded, and where that fails.

        `failing`: requests whose images cannot be encoded.
        """
        encoding = sorted(self.state.encoding)
        return {
            "compiled": sorted(self.state.compiling),
            "encoded": [id_ for id_ in encoding if id_ not in failing],
            "unencodable": [id_ for id_ in encoding if id_ in failing],
        }

    def _made_ready(self, ready: Mapping[str, Iterable[str]]) -> tuple[Event, ...]:
        """Make these grammars and images ready; the events that say so."""
        events = []
        for what, ids in ready.items():
            for request_id in ids:
                self.state = getattr(self.machine, what)(self.state, request_id)
                events.append(Event(what, request_id, ""))
        return tuple(events)


def _with_events(events: tuple[Event, ...], step: Step) -> Step:
    return evolve(step, events=(*events, *step.events)) if events else step
