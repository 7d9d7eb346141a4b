"""A scheduler's machine with its environment, as a state graph to explore.

The scheduler is deterministic. The environment decides which request arrives when, which client
aborts, and what a policy leaves open in a step, such as which request ends early.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any, Generic, Protocol, TypeVar

from attrs import evolve, frozen

from checks.explore.instance import Instance
from checks.explore.model import STEP, Transition
from checks.explore.returning import Forgotten, forgotten, is_gone
from checks.remembered import machine_remembering
from reference.core.machine import ContextT, Machine
from spec.core.records import SomeState

StateT = TypeVar("StateT")
AfterT = TypeVar("AfterT", covariant=True)


class Stepped(Protocol[AfterT]):
    """The part of a step record that an explorer of early ends uses."""

    @property
    def after(self) -> AfterT:
        """The state after the step."""

    @property
    def outputs(self) -> Iterable[str]:
        """The requests that sampled tokens."""

    @property
    def finished(self) -> tuple[str, ...]:
        """The requests that finished with all tokens."""


def _nothing(_state: object) -> Iterable[Transition[Any]]:
    return ()


def _itself(state: Any) -> Any:
    return state


@frozen(eq=False)
class MachineModel(Generic[ContextT, StateT]):
    """The reachable states of an instance; implements the explorer's `Model`.

    `steps`: the scheduler steps from a state that has work, one for each decision of the
    environment. `has_work`: by default where a request is present. `between`: ends of loads, and
    arrivals of `later_turns` of sessions, between two steps as other arrivals are.
    `canonical`: equal for states that need not be distinguished; by default the state itself.
    `places`: places of the requests that `canonical` does not distinguish, see `Eventually`.
    `observed`: the scheduler state in a state of the machine; by default the state itself.
    """

    instance: Instance[Any]
    machine: Machine[ContextT, StateT]
    steps: Callable[[StateT], Iterable[Transition[StateT]]]
    between: Callable[[StateT], Iterable[Transition[StateT]]] = _nothing
    later_turns: frozenset[str] = frozenset()
    has_work: Callable[[StateT], bool] | None = None
    canonical: Callable[[StateT], Hashable] = _itself
    places: Callable[[StateT], Mapping[str, int]] | None = None
    observed: Callable[[StateT], SomeState] = _itself

    @property
    def ctx(self) -> ContextT:
        """The context for the rules."""
        return self.machine.ctx

    @property
    def loads_between(self) -> bool:
        """True if loads may end between two steps."""
        return self.between is not _nothing

    def initial(self) -> Iterable[StateT]:
        """One state: no request has arrived."""
        yield self.machine.initial()

    def successors(self, state: StateT) -> Iterator[Transition[StateT]]:
        """Every possible next arrival, abort and step."""
        observed = self.observed(state)
        present = [request.id for request in observed.present]
        left = observed.finished | observed.aborted
        arrived = left | frozenset(present)
        for request in self.instance.requests:
            if request.id not in arrived and request.id not in self.later_turns:
                yield Transition(f"arrive {request.id}", self.machine.arrive(state, request.id))
        for request_id in sorted(self.instance.returning & left):
            if is_gone(observed, request_id):
                unknown = forgotten(state, [request_id])
                after = self.machine.arrive(unknown, request_id)
                yield Transition(f"arrive {request_id}", after, record=Forgotten(unknown))
        for request_id in present:
            if request_id in self.instance.aborts:
                yield Transition(f"abort {request_id}", self.machine.abort(state, request_id))
        yield from self.between(state)
        if present if self.has_work is None else self.has_work(state):
            yield from self.steps(state)

    def unfinished(self, state: StateT) -> bool:
        """True if a request is pending."""
        return not self.observed(state).is_idle


class EndsEarly(Machine[ContextT, StateT], Protocol):
    """A machine in whose steps the environment decides only which requests end early."""

    def step(self, state: StateT, ends: Callable[[Any], bool]) -> Any:
        """One scheduler step; the requests for which `ends` is true end early in it."""


def early_end_model(
    instance: Instance[Any],
    machine: EndsEarly[ContextT, StateT],
    canonical: Callable[[StateT], Hashable] = _itself,
    places: Callable[[StateT], Mapping[str, int]] | None = None,
) -> MachineModel[ContextT, StateT]:
    """The model of a machine in whose steps the environment decides which requests end early."""
    known = machine_remembering(machine)

    def step(state: StateT, ending: tuple[str, ...]) -> Stepped[StateT]:
        taken: Any = known.step(state, lambda row: row.id in ending)
        step: Stepped[StateT] = evolve(taken, ended=ending) if ending else taken
        return step

    steps = with_early_ends(instance, step)
    return MachineModel(instance, known, steps, canonical=canonical, places=places)


def with_early_ends(
    instance: Instance[Any], step: Callable[[StateT, tuple[str, ...]], Stepped[StateT]]
) -> Callable[[StateT], Iterator[Transition[StateT]]]:
    """The steps from a state, one for each set of requests that end early, the empty set first.

    `step` takes a step from a state; the given requests sample the end of sequence in it. Only a
    request that samples a token in the step, and not its last one, can end early.
    """

    def steps(state: StateT) -> Iterator[Transition[StateT]]:
        usual = step(state, ())
        yield Transition("step", usual.after, record=usual, fair=STEP)
        may_end = instance.early_ends.difference(usual.finished)
        candidates = [request_id for request_id in usual.outputs if request_id in may_end]
        for count in range(1, len(candidates) + 1):
            for ending in combinations(candidates, count):
                taken = step(state, ending)
                label = f"step, {' and '.join(ending)} ends"
                yield Transition(label, taken.after, record=taken, fair=STEP)

    return steps
