"""What a machine gives the explorer, what can be asked of it, and the run that refutes it."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from attrs import frozen

StateT = TypeVar("StateT")

# Classes of fair actions, each with a condition of its own. Nothing forces a client to come or go.
STEP = 1
_LOAD = 2
CLASSES = 32  # a power of two


def load_of(place: int) -> int:
    """The class of the loads of the request at this place; beyond the classes they share one."""
    return min(_LOAD + place, CLASSES - 1)


@frozen
class Transition(Generic[StateT]):
    """One edge of the state graph.

    `action` is the label that people read ("arrive 1", "step, 1 ends"); its first word is the kind
    of action that is counted. `record` says what happened on the way, for properties and
    counterexamples. `fair`: the class of an action that must happen: where one of the class stays
    possible for ever, one of it is taken again and again. Nothing forces those of class 0.
    """

    action: str
    state: StateT
    record: Any = None
    fair: int = 0


class Model(Protocol[StateT]):
    """A machine, by its states and edges.

    All four must be pure, and `initial` and `successors` must yield the same things in the same
    order whenever they are asked: paths are kept as positions in that order and run again.
    """

    def initial(self) -> Iterable[StateT]:
        """The states that a run can start in: at least one."""

    def successors(self, state: StateT) -> Iterable[Transition[StateT]]:
        """Every transition possible in the state; raising is a violation of `machine-error`."""

    def canonical(self, state: StateT) -> Hashable:
        """A value that is equal for exactly the states that need not be distinguished.

        The state itself where there is no symmetry. States with equal values must have successors
        with equal values, and no property may distinguish them, but for `Eventually` with `places`.
        """

    def unfinished(self, state: StateT) -> bool:
        """Whether work is pending, so that a state without successors is a deadlock."""


@frozen
class Always(Generic[StateT]):
    """`holds` in every reachable state: None, or one line that says what was found instead."""

    rule: str
    holds: Callable[[StateT], str | None]


@frozen
class OnStep(Generic[StateT]):
    """`holds` on every reachable transition: None, or one line that says what was found instead.

    `of`: it is asked only of transitions whose record is one.
    """

    rule: str
    holds: Callable[[StateT, Transition[StateT]], str | None]
    of: type = object


@frozen
class Eventually(Generic[StateT]):
    """After (or in) every state with `trigger` comes one with `goal`, on every fair run.

    A run is fair if of each class of actions (`Transition.fair`) it takes one infinitely often, or
    is infinitely often in states where none is possible. It may stay for ever where none of any
    class is. `of`: the request it is about, where a rule asks for the same of several.

    Where the model merges states that differ in which of some requests is which: `request` is the
    id of the one it is about, `places` says where each of these requests stands in a state. Merged
    states have the same places; requests share one where swapping them leaves the state as it is.
    """

    rule: str
    trigger: Callable[[StateT], bool]
    goal: Callable[[StateT], bool]
    of: str = ""
    request: str = ""
    places: Callable[[StateT], Mapping[str, int]] | None = None


@frozen
class Witness(Generic[StateT]):
    """Something that must be `seen` on one transition at least, or the rule says nothing.

    `of`: it is asked only of transitions whose record is one.
    """

    rule: str
    seen: Callable[[StateT, Transition[StateT]], object]  # true or not
    of: type = object


@frozen
class Sightings:
    """How often a witness was seen: on how many edges, and first after how many steps."""

    edges: int = 0
    first_depth: int | None = None


Property: TypeAlias = Always[StateT] | OnStep[StateT] | Eventually[StateT]


@frozen
class Counterexample(Generic[StateT]):
    """A run of the machine: the initial state and then every transition with the state it leads to.

    `loop_from` is given for runs that never end: after that many steps the run repeats what
    follows for ever (up to symmetry), or stays where it is if nothing follows.
    """

    initial: StateT
    steps: tuple[Transition[StateT], ...] = ()
    loop_from: int | None = None

    @property
    def last(self) -> StateT:
        """The state that the run ends in."""
        return self.steps[-1].state if self.steps else self.initial

    def then(self, *steps: Transition[StateT]) -> "Counterexample[StateT]":
        """This finite run, continued."""
        return Counterexample(self.initial, self.steps + steps)


@frozen
class Violation(Generic[StateT]):
    """A rule that does not hold, what was found instead, and how to get there."""

    rule: str
    found: str
    counterexample: Counterexample[StateT]
