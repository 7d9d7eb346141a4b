"""The explorer's terms: models, transitions, properties, witnesses and counterexamples."""

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from attrs import frozen

StateT = TypeVar("StateT")

# Classes of fair actions, each with its own condition. No client is forced to arrive or to abort.
STEP = 1
_LOAD = 2
CLASSES = 32  # a power of two


def load_class(place: int) -> int:
    """The class of the loads of the request at this place; places beyond share the last class."""
    return min(_LOAD + place, CLASSES - 1)


@frozen
class Transition(Generic[StateT]):
    """One edge of the state graph.

    `action`: its label ("arrive 1", "step, 1 ends"); the first word is the kind of action, which is
    counted. `record`: what happened on the edge, such as a step, for properties and
    counterexamples. `fair`: the class of an action that must happen: if actions of the class stay
    possible forever, they are taken again and again. Actions of class 0 need not happen.
    """

    action: str
    state: StateT
    record: Any = None
    fair: int = 0


class Model(Protocol[StateT]):
    """A machine as a state graph.

    All four methods must be pure. `initial` and `successors` must always yield the same items in
    the same order: the explorer stores a path as positions in that order and repeats it.
    """

    def initial(self) -> Iterable[StateT]:
        """The initial states: at least one."""

    def successors(self, state: StateT) -> Iterable[Transition[StateT]]:
        """Every possible transition from the state; an exception violates `machine-error`."""

    def canonical(self, state: StateT) -> Hashable:
        """A value that is equal for exactly the states that need not be distinguished.

        The state itself where there is no symmetry. States with equal values must have successors
        with equal values, and no property may distinguish them, but for `Eventually` with `places`.
        """

    def unfinished(self, state: StateT) -> bool:
        """Whether work is pending, so that a state without successors is a deadlock."""


@frozen
class Always(Generic[StateT]):
    """A property of every reachable state: `holds` returns None, or a message of one line."""

    rule: str
    holds: Callable[[StateT], str | None]


@frozen
class OnStep(Generic[StateT]):
    """A property of every reachable transition: `holds` returns None, or a message of one line.

    `of`: the class of records to whose transitions it applies.
    """

    rule: str
    holds: Callable[[StateT, Transition[StateT]], str | None]
    of: type = object


@frozen
class Eventually(Generic[StateT]):
    """On every fair run a state with `trigger` is or precedes one with `goal`.

    A run is fair if, for each class of actions (`Transition.fair`), it takes such an action
    infinitely often, or is infinitely often in states where none is possible. It may stay forever
    in a state where no fair action is possible. `of`: the subject, such as "request 1", if a rule
    applies to each of several requests.

    For a model that merges states that differ only in the names of equal requests: `request` is the
    id of the property's request, and `places` gives the place of each such request in a state.
    Merged states have the same places; two requests share a place if swapping them does not change
    the state.
    """

    rule: str
    trigger: Callable[[StateT], bool]
    goal: Callable[[StateT], bool]
    of: str = ""
    request: str = ""
    places: Callable[[StateT], Mapping[str, int]] | None = None


@frozen
class Witness(Generic[StateT]):
    """Evidence that a rule is not vacuous: `seen` must be true on at least one transition.

    `of`: the class of records to whose transitions it applies.
    """

    rule: str
    seen: Callable[[StateT, Transition[StateT]], object]  # true or not
    of: type = object


@frozen
class Sightings:
    """Sightings of a witness: the number of edges, and the depth of the first."""

    edges: int = 0
    first_depth: int | None = None


Property: TypeAlias = Always[StateT] | OnStep[StateT] | Eventually[StateT]


@frozen
class Counterexample(Generic[StateT]):
    """A run of the machine: the initial state and the transitions.

    `loop_from`: of an endless run, the number of steps before its loop; the steps after it repeat
    forever (up to symmetry). If there are none, the run stays in its last state.
    """

    initial: StateT
    steps: tuple[Transition[StateT], ...] = ()
    loop_from: int | None = None

    @property
    def last(self) -> StateT:
        """The last state of the run."""
        return self.steps[-1].state if self.steps else self.initial

    def then(self, *steps: Transition[StateT]) -> "Counterexample[StateT]":
        """This finite run with further transitions."""
        return Counterexample(self.initial, self.steps + steps)


@frozen
class Violation(Generic[StateT]):
    """A broken rule, the message of its predicate, and a run that breaks it."""

    rule: str
    found: str
    counterexample: Counterexample[StateT]
