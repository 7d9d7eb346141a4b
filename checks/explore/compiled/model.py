"""The interface between a policy's compiled machine and the explorer."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.int64]
StateT = TypeVar("StateT")

DOES_NOT_FIT, STUCK = -1, -2  # instead of a number of edges


class CompiledModel(Protocol[StateT]):
    """The machine of an instance on packed canonical states of `words` 64-bit words each."""

    words: int

    @property
    def most_edges(self) -> int:
        """The largest possible number of outgoing edges of a state."""

    def first(self) -> Words:
        """The initial state."""

    def another(self) -> "CompiledModel[StateT]":
        """A copy of the machine, for another thread."""

    @property
    def rules(self) -> Sequence[str]:
        """The rules that are judged in numbers, in the order of their bits."""

    @property
    def goals(self) -> Sequence[tuple[str, str]]:
        """The liveness goals, as rule and request, in the order of their bits.

        Wherever a goal is open a step is possible.
        """

    def open_goals(self, states: Words, goals: Words) -> None:
        """Write the open goals of each state, as bits, into `goals`."""

    def expand(
        self,
        states: Words,
        first: int,
        last: int,
        targets: Words,
        sources: Words,
        actions: Words,
        broken: Words,
    ) -> int:
        """Write the edges of the states from `first` to before `last`; returns their number.

        For each edge: its target state into `targets`, the index of its source state, its action,
        and the rules it breaks, as bits. Returns DOES_NOT_FIT if a state does not fit into its
        words, and STUCK if a guard of the machine fails in a step from the state `sources[0]`.
        """

    def label(self, action: int) -> str:
        """The reference model's label of an action, up to the order of requests in it."""

    def decoded(self, words: Words) -> StateT:
        """The reference's state for a packed state."""

    def encoded(self, state: StateT) -> Words:
        """The packed form of a state of the reference, the same for states equal up to names.

        Raises:
            ValueError: the state does not fit into the words.
        """
