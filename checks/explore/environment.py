"""A scheduler's machine with its environment, as a state graph to explore.

The scheduler is deterministic; what is not is the environment: which request arrives when,
which client goes away, which request samples the end of sequence.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from typing import Any, Generic, Protocol, TypeVar

from attrs import evolve

from checks.explore.instance import Conf, Instance
from checks.explore.model import Transition
from spec.core.observable import SomeSequence, SomeState

At = TypeVar("At", bound=SomeState)


class ClientSide(Protocol[At]):
    """What clients do to a machine of states `At`, between two steps; all of it pure."""

    def arrive(self, state: At, request_id: str) -> At:
        """A request is handed in."""

    def abort(self, state: At, request_id: str) -> At:
        """A client goes away."""


class Machine(ClientSide[At], Protocol[At]):
    """What a reference machine does; all of it pure."""

    def initial(self) -> At:
        """Nobody has arrived."""

    def step(self, state: At, ends: Callable[[Any], bool] | None = None) -> Any:
        """One scheduler step; `ends` tells who samples the end of sequence."""


class EnvironmentModel(Generic[Conf, At]):
    """The reachable states of an instance; implements the explorer's model."""

    def __init__(self, instance: Instance[Conf], machine: Machine[At]) -> None:
        """`machine`: the scheduler for the requests of the instance."""
        self.instance = instance
        self.machine = machine

    def initial(self) -> Iterable[At]:
        """One state: nobody has arrived."""
        yield self.machine.initial()

    def successors(self, state: At) -> Iterator[Transition[At]]:
        """Every arrival, abort and step that may come next."""
        yield from arrivals_and_aborts(self.instance, self.machine, state)
        if not state.is_idle:
            yield from self._steps(state)

    def _steps(self, state: At) -> Iterator[Transition[At]]:
        """The step in which nobody ends early, and one for each set of requests that do."""
        step = self.machine.step(state, ends=lambda _row: False)
        yield _as_transition(step, ())
        may_end = [
            one
            for one in step.outputs
            if one in self.instance.early_ends and one not in step.finished
        ]
        for count in range(1, len(may_end) + 1):
            for ending in combinations(may_end, count):
                yield _as_transition(self.machine.step(state, ends=_one_of(ending)), ending)

    def canonical(self, state: At) -> Any:
        """The state itself: no two requests are taken for the same."""
        return state

    def unfinished(self, state: At) -> bool:
        """True if a request is pending."""
        return not state.is_idle


def arrivals_and_aborts(
    instance: Instance[Conf], machine: ClientSide[At], state: At
) -> Iterator[Transition[At]]:
    """The arrival of each request not seen so far, and each abort that the instance allows."""
    known = {one.id for one in state.present} | state.finished | state.aborted
    for request in instance.requests:
        if request.id not in known:
            yield Transition(f"arrive {request.id}", machine.arrive(state, request.id))
    for one in state.present:
        if one.id in instance.aborts:
            yield Transition(f"abort {one.id}", machine.abort(state, one.id))


def _one_of(ending: tuple[str, ...]) -> Callable[[SomeSequence], bool]:
    return lambda row: row.id in ending


def _as_transition(step: Any, ending: tuple[str, ...]) -> Transition[At]:
    """The edge of a step; `ending` are those who sampled the end of sequence early."""
    label = f"step, {' and '.join(ending)} ends" if ending else "step"
    return Transition(label, step.after, record=evolve(step, ended=ending), fair=True)
