"""Choices: the recorded draws of a generator, from which a case can be made again.

A generator draws numbers, each from a range whose least value is the simplest. The draws form a
tree: an entry for each number and, for each repeated part, the entries of its repetitions. The same
tree gives the same case; a tree without a repetition, or with a lower number, gives a simpler one.
So `checks.harness.campaigns.shrinking` shrinks the cases of all policies in the same way.
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, TypeAlias, TypeVar

Value = TypeVar("Value")


class Earlier(int):
    """The index of an earlier repetition of the same part, from 0.

    If a repetition is removed, the later ones are renumbered, and so are references to them.
    """


Node: TypeAlias = tuple[Any, ...]
"""Numbers, and for each repeated part a tuple with the node of each repetition.

A node to draw from may have None in the place of either: that entry is drawn again.
"""

_SIMPLEST: Node = ()  # in the place of a missing entry

_EPISODES = 2**64


class Choices:
    """Draws numbers and remembers them."""

    def __init__(
        self, unit: Callable[[], float], given: Node = (), missing: Node | None = None
    ) -> None:
        """`unit`: random numbers from 0 to 1; `given`: recorded draws, used instead of `unit`.

        `missing`: the entry once `given` is exhausted. Where an entry has another form than the
        draw, the simplest value is drawn.
        """
        self._unit = unit
        self._given = iter(given)
        self._missing = missing
        self._drawn: list[Any] = []

    @staticmethod
    def seeded(seed: int, episode: int) -> Iterator["Choices"]:
        """The draws of an episode, one `Choices` per attempt; equal on all machines and Pythons.

        Only `Random.random` is used: Python promises to keep its sequence. `seed` and `episode`:
        whole numbers, 0 or more; each pair has its own sequence.
        """
        unit = Random(seed * _EPISODES + episode).random
        while True:
            yield Choices(unit)

    @staticmethod
    def again(node: Node) -> "Choices":
        """The draws of `node` once more."""
        return Choices(lambda: 0.0, node, _SIMPLEST)

    @staticmethod
    def filled(node: Node, unit: Callable[[], float]) -> "Choices":
        """The draws of `node` once more; what it lacks is drawn from `unit`."""
        return Choices(unit, node)

    @property
    def node(self) -> Node:
        """The draws so far."""
        return tuple(
            tuple(child.node for child in entry) if isinstance(entry, list) else entry
            for entry in self._drawn
        )

    def chance(self, share: float) -> bool:
        """True in `share` of the draws; False is simpler."""
        entry = self._entry()
        if entry is None:
            drawn = self._unit() < share
        else:
            drawn = share > 0 and (share >= 1 or _number(entry, 1) > 0)
        self._drawn.append(int(drawn))
        return drawn

    def between(self, least: int, most: int) -> int:
        """A whole number from `least`, the simplest, to `most`; all are equally likely."""
        span, entry = most - least, self._entry()
        drawn = int(self._unit() * (span + 1)) if entry is None else _number(entry, span)
        self._drawn.append(drawn)
        return least + drawn

    def one_of(self, values: Sequence[Value]) -> Value:
        """One of the values, the simplest first; a value listed twice is twice as likely."""
        return values[self.between(0, len(values) - 1)]

    def earlier(self, repetitions: int) -> int:
        """Draw which of the parts that were repeated so far is meant: its index, 0 is simplest."""
        drawn = self.between(0, repetitions - 1)
        self._drawn[-1] = Earlier(drawn)
        return drawn

    def several(self, least: int, most: int) -> Iterator["Choices"]:
        """`least` to `most` repetitions, all numbers equally likely; yields the draws of each.

        From recorded draws: as many repetitions as were recorded, at least one.
        """
        children: list[Choices] = []
        entry = self._entry()
        if entry is None:
            entry = ((),) * (least + int(self._unit() * (most - least + 1)))
        self._drawn.append(children)
        for node in (entry if isinstance(entry, tuple) else ()) or ((),):
            child = Choices(self._unit, node, self._missing)
            children.append(child)
            yield child

    def part(self) -> "Choices":
        """Draws that belong together: their number does not shift the draws after them."""
        return next(self.several(1, 1))

    def _entry(self) -> Any:
        """The next recorded entry; None: it is drawn."""
        return next(self._given, self._missing)


def _number(entry: Any, most: int) -> int:
    """A recorded entry as a number from 0 to `most`."""
    return min(max(entry, 0), most) if isinstance(entry, int) else 0


# --- in files -------------------------------------------------------------------------------------

_EARLIER = "earlier"


def node_as_json(node: Node) -> list[Any]:
    """A node as JSON: numbers, `{"earlier": n}`, and for a repeated part a list of nodes."""
    return [_entry_as_json(entry) for entry in node]


def _entry_as_json(entry: Any) -> Any:
    if isinstance(entry, tuple):
        return [node_as_json(child) for child in entry]
    return {_EARLIER: int(entry)} if isinstance(entry, Earlier) else int(entry)


def node_from_json(said: Sequence[Any]) -> Node:
    """The node that `node_as_json` wrote.

    Raises:
        TypeError, KeyError, ValueError: `said` is no node.
    """
    return tuple(_entry_from_json(entry) for entry in said)


def _entry_from_json(entry: Any) -> Any:
    if isinstance(entry, list):
        return tuple(node_from_json(child) for child in entry)
    return Earlier(entry[_EARLIER]) if isinstance(entry, dict) else int(entry)
