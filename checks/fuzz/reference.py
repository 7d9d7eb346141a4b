"""The reference as a target: the machine with the state that it is in."""

from collections.abc import Collection, Iterable

from attrs import define, evolve, field

from reference.spyre.machine import SpyreMachine
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Step
from spec.spyre.state import Sequence, State


@define
class ReferenceTarget:
    """Implements `Target`."""

    machine: SpyreMachine
    state: State
    _aborted: list[str] = field(factory=list, init=False)

    def arrive(self, request_id: str) -> None:
        """The request is handed in between two steps."""
        self.state = self.machine.arrive(self.state, request_id)

    def abort(self, request_id: str) -> None:
        """The client goes away between two steps; nothing happens if the request has left."""
        if any(one.id == request_id for one in self.state.present):
            self.state = self.machine.abort(self.state, request_id)
            self._aborted.append(request_id)

    def step(self, index: int, time: float, ends: Collection[str] | None = None) -> Step:
        """One scheduler step."""
        if ends is None:
            step = self.machine.step(self.state, index=index, time=time)
        else:
            step = self._step_with_ends(index, time, frozenset(ends))
        if self._aborted:
            step = evolve(step, aborted=tuple(self._aborted))
            self._aborted.clear()
        self.state = step.after
        return step

    def _step_with_ends(self, index: int, time: float, ends: frozenset[str]) -> Step:
        def ended(row: Sequence) -> bool:
            return row.id in ends

        step = self.machine.step(self.state, ended, index, time)
        return evolve(step, ended=tuple(one for one in step.outputs if one in ends))


def reference_target(config: SpyreConfig, requests: Iterable[Request]) -> ReferenceTarget:
    """The reference with these requests, nobody arrived.

    Raises:
        WorkloadError: a request that could never be served.
    """
    machine = SpyreMachine.of(config, requests)
    return ReferenceTarget(machine, machine.initial())
