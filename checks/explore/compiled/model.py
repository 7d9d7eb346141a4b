"""What a policy's compiled machine gives the explorer."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.int64]
StateT = TypeVar("StateT")

DOES_NOT_FIT, STUCK = -1, -2  # instead of a number of edges


class CompiledModel(Protocol[StateT]):
    """The machine of an instance on packed states: canonical, of `words` words each.

    `most_edges`: that can leave one state.
    """

    words: int

    @property
    def most_edges(self) -> int:
        """The most edges that can leave a state."""

    def first(self) -> Words:
        """The state in which runs begin."""

    def another(self) -> "CompiledModel[StateT]":
        """The same machine, to expand states at the same time in another thread."""

    @property
    def rules(self) -> Sequence[str]:
        """The rules that are judged in numbers, in the order of their bits."""

    @property
    def goals(self) -> Sequence[tuple[str, str]]:
        """What must come sooner or later, by rule and request, in the order of their bits.

        Where one of them is open a step is possible.
        """

    def open_goals(self, states: Words, found: Words) -> None:
        """Write which goals are open in each of the states, as bits."""

    def expand(
        self,
        states: Words,
        first: int,
        last: int,
        found: Words,
        sources: Words,
        actions: Words,
        broken: Words,
    ) -> int:
        """Write what follows the states from `first` to before `last`; returns how many edges.

        Of each edge: the state at its end, the index of the one at its beginning, its action, and
        which of the rules it breaks, as bits.
        DOES_NOT_FIT if a state is too wide for its words, STUCK if a guard of the machine does not
        hold in a step from the state whose index stands in `sources` first.
        """

    def label(self, action: int) -> str:
        """An action as the reference's model names it, up to the order of requests in it."""

    def decoded(self, words: Words) -> StateT:
        """The state of the reference."""

    def encoded(self, state: StateT) -> Words:
        """The packed form of any state of the reference that is the same up to names.

        Raises:
            ValueError: it does not fit into the words.
        """
