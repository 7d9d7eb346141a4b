"""A step in progress: pure transitions, taken one after the other, and their events."""

from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar, TypeVarTuple

from attrs import define

from spec.core.records import Event

ContextT = TypeVar("ContextT")
StateT = TypeVar("StateT")
MadeT = TypeVar("MadeT")
Ts = TypeVarTuple("Ts")

Moved: TypeAlias = tuple[StateT, tuple[Event, ...]]  # what a transition returns


@define
class Run(Generic[ContextT, StateT]):
    """A step under way.

    `state`: what the transitions taken so far have made of the state that it started from.
    `events`: what they recorded.
    """

    ctx: ContextT
    state: StateT
    events: tuple[Event, ...] = ()

    def take(
        self,
        transition: Callable[[ContextT, StateT, *Ts], Moved[StateT]],
        *args: *Ts,
    ) -> None:
        """Take a transition with these arguments.

        Raises:
            GuardError: the transition's guard does not hold.
        """
        self.state, events = transition(self.ctx, self.state, *args)
        self.events += events

    def make(
        self,
        transition: Callable[[ContextT, StateT, *Ts], tuple[StateT, MadeT, tuple[Event, ...]]],
        *args: *Ts,
    ) -> MadeT:
        """Take a transition with a result, and return the result.

        Raises:
            GuardError: the transition's guard does not hold.
        """
        self.state, made, events = transition(self.ctx, self.state, *args)
        self.events += events
        return made

    def ids_of(self, transition: str) -> tuple[str, ...]:
        """Ids of the requests that took a transition of this name so far, in order."""
        return tuple(event.id for event in self.events if event.transition == transition)
