"""A rule that does not hold, and the run that shows it."""

from typing import Generic

from attrs import frozen

from checks.explore.model import StateT, Transition


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
