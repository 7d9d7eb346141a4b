"""A scheduler's machine with its environment, as a state graph to explore.

The scheduler is deterministic; what is not is the environment: which request arrives when, which
client goes away, and what a policy leaves open in a step, such as which request ends early.
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
    """What came of a scheduler step, as far as an explorer of early ends looks at it."""

    @property
    def after(self) -> AfterT:
        """The state that it left."""

    @property
    def outputs(self) -> Iterable[str]:
        """The requests that sampled tokens."""

    @property
    def finished(self) -> tuple[str, ...]:
        """The requests that left with all tokens."""


def _nothing(_state: object) -> Iterable[Transition[Any]]:
    return ()


def _itself(state: Any) -> Any:
    return state


@frozen(eq=False)
class MachineModel(Generic[ContextT, StateT]):
    """The reachable states of an instance; implements the explorer's `Model`.

    `steps`: the scheduler steps from a state in which a request is present, one for each decision
    of the environment. `between`: what may happen between two steps, arrivals and aborts apart.
    `canonical`: equal for states that need not be distinguished, by default for equal ones only.
    `places`: of requests that it does not distinguish, see `Eventually`.
    `observed`: the requests of a state, where it is no scheduler state itself.
    """

    instance: Instance[Any]
    machine: Machine[ContextT, StateT]
    steps: Callable[[StateT], Iterable[Transition[StateT]]]
    between: Callable[[StateT], Iterable[Transition[StateT]]] = _nothing
    canonical: Callable[[StateT], Hashable] = _itself
    places: Callable[[StateT], Mapping[str, int]] | None = None
    observed: Callable[[StateT], SomeState] = _itself

    @property
    def ctx(self) -> ContextT:
        """What the rules look up."""
        return self.machine.ctx

    def initial(self) -> Iterable[StateT]:
        """One state: no request has arrived."""
        yield self.machine.initial()

    def successors(self, state: StateT) -> Iterator[Transition[StateT]]:
        """Every arrival, abort and step that may come next."""
        observed = self.observed(state)
        present = [one.id for one in observed.present]
        left = observed.finished | observed.aborted
        arrived = left | frozenset(present)
        for request in self.instance.requests:
            if request.id not in arrived:
                after = self.machine.arrive(state, request.id)
                yield Transition(f"arrive {request.id}", after)
        for one in sorted(self.instance.returning & left):
            if is_gone(observed, one):
                unknown = forgotten(state, [one])
                after = self.machine.arrive(unknown, one)
                yield Transition(f"arrive {one}", after, record=Forgotten(unknown))
        for one in present:
            if one in self.instance.aborts:
                yield Transition(f"abort {one}", self.machine.abort(state, one))
        yield from self.between(state)
        if present:
            yield from self.steps(state)

    def unfinished(self, state: StateT) -> bool:
        """True if a request is pending."""
        return not self.observed(state).is_idle


class EndsEarly(Machine[ContextT, StateT], Protocol):
    """A machine whose environment decides no more of a step than which requests end early in it."""

    def step(self, state: StateT, ends: Callable[[Any], bool]) -> Any:
        """One scheduler step, `ended` in it by the requests for which `ends` is true."""


def model_of(
    instance: Instance[Any],
    machine: EndsEarly[ContextT, StateT],
    canonical: Callable[[StateT], Hashable] = _itself,
    places: Callable[[StateT], Mapping[str, int]] | None = None,
) -> MachineModel[ContextT, StateT]:
    """The model of a machine of whose steps the environment decides which requests end early."""
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
    """Steps in which any set of the requests that may end early does so, beginning with none.

    `step` takes a step from a state in which these requests sample the end of sequence. Only a
    request that samples a token in the step, and has more to come, can end early in it.
    """

    def steps(state: StateT) -> Iterator[Transition[StateT]]:
        usual = step(state, ())
        yield Transition("step", usual.after, record=usual, fair=STEP)
        may_end = instance.early_ends.difference(usual.finished)
        candidates = [one for one in usual.outputs if one in may_end]
        for count in range(1, len(candidates) + 1):
            for ending in combinations(candidates, count):
                taken = step(state, ending)
                label = f"step, {' and '.join(ending)} ends"
                yield Transition(label, taken.after, record=taken, fair=STEP)

    return steps
