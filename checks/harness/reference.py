"""A reference machine as a server: the machine with the state that it is in."""

from typing import Any, Generic, Protocol, TypeVar

from attrs import evolve

from spec.core.records import SomeStep

By = TypeVar("By", bound=SomeStep)
Made = TypeVar("Made", bound=SomeStep, covariant=True)


class Machine(Protocol[Made]):
    """What a reference machine does; all of it pure. Its states are its own business."""

    def initial(self) -> Any:
        """Nobody has arrived."""

    def arrive(self, state: Any, request_id: str) -> Any:
        """A request is handed in between two steps."""

    def abort(self, state: Any, request_id: str) -> Any:
        """A client goes away between two steps."""

    def step(self, state: Any, *, index: int, time: float) -> Made:
        """One scheduler step; requests end where they say that they do."""


class MachineServer(Generic[By]):
    """A machine with the state that it is in; implements `Server`."""

    def __init__(self, machine: Machine[By]) -> None:
        """Nobody has arrived."""
        self._machine = machine
        self._state = machine.initial()
        self._aborted: list[str] = []

    def arrive(self, request_id: str) -> None:
        """The request is handed in between two steps."""
        self._state = self._machine.arrive(self._state, request_id)

    def abort(self, request_id: str) -> None:
        """The client goes away between two steps; nothing happens if the request has left."""
        if any(one.id == request_id for one in self._state.present):
            self._state = self._machine.abort(self._state, request_id)
            self._aborted.append(request_id)

    def step(self, index: int, time: float) -> By:
        """One scheduler step."""
        step = self._machine.step(self._state, index=index, time=time)
        self._state = step.after
        if not self._aborted:
            return step
        record: Any = step  # an attrs class, whichever it is
        told: By = evolve(record, aborted=tuple(self._aborted))
        self._aborted.clear()
        return told
