"""Guidance of a campaign: choices that reached a new situation are kept and mutated.

Some of the episodes are drawn, some are mutations of kept choices: repetitions are cut, those of
another kept case are spliced in, choices are drawn again. An episode knows what three quarters
of the episodes before it have kept, so that the cases depend on the seed alone and not on the core
that ends first.
"""

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import TypeAlias, TypeVar

from attrs import frozen

from checks.harness.campaigns.shrinking import Path, entries, with_entry, without_repetitions
from checks.harness.choices import Choices, Node

Value = TypeVar("Value")
Unit: TypeAlias = Callable[[], float]
"""Random numbers from 0 to 1."""

_STREAMS = 2**128  # more than the seeds of `Choices.seeded`
_EPISODES = 2**64
DRAWN_FIRST = 200  # episodes; a drawn case of these reaches something new most often
_MUTATED = 0.25  # of the others
_MOST_CHANGES = 3  # of a mutation


@frozen
class Kept:
    """The choices of an episode, and the situations that it reached first; -1: an earlier run."""

    episode: int
    choices: Node
    reached: frozenset[str]


@frozen
class Start:
    """An episode, and the kept choices that it mutates; without any it is drawn."""

    episode: int
    parents: tuple[Node, ...] = ()


def known_episodes(first: int) -> int:
    """The number of episodes whose kept choices a batch knows that begins with episode `first`."""
    return first - first // 4


def start(seed: int, episode: int, kept: Sequence[Kept]) -> Start:
    """The start of an episode: it mutates one of the kept choices or is drawn.

    What was kept late reached what is rare; it is chosen more often.
    """
    unit = _numbers(seed, episode)
    if episode < DRAWN_FIRST or unit() >= _MUTATED or not kept:
        return Start(episode)
    places = [max(_below(len(kept), unit), _below(len(kept), unit)) for _ in range(2)]
    return Start(episode, tuple(kept[place].choices for place in places))


def mutations(seed: int, start: Start, tries: int) -> Iterator[Choices]:
    """Mutations of the parents of a start, in the order in which they are tried."""
    unit = _numbers(seed, start.episode)
    first, other = start.parents
    for _ in range(tries):
        yield Choices.filled(_mutated(first, other, unit), unit)


def _numbers(seed: int, episode: int) -> Unit:
    return Random(_STREAMS + seed * _EPISODES + episode).random


def _below(most: int, unit: Unit) -> int:
    return int(unit() * most)


def _one_of(values: Sequence[Value], unit: Unit) -> Value:
    return values[_below(len(values), unit)]


# --- mutations ------------------------------------------------------------------------------------


def _mutated(node: Node, other: Node, unit: Unit) -> Node:
    for _ in range(1 + _below(_MOST_CHANGES, unit)):
        node = _one_of((_cut, _spliced, _changed, _changed), unit)(node, other, unit)
    return node


def _cut(node: Node, _other: Node, unit: Unit) -> Node:
    """The node without some consecutive repetitions of a part."""
    repeated = [item for item in entries(node) if isinstance(item[1], tuple) and len(item[1]) > 1]
    if not repeated:
        return node
    path, repetitions = _one_of(repeated, unit)
    begin = _below(len(repetitions), unit)
    end = min(begin + 1 + _below(len(repetitions) // 2, unit), len(repetitions))
    kept = without_repetitions(repetitions, begin, end)
    return with_entry(node, path, kept) if kept else node


def _spliced(node: Node, other: Node, unit: Unit) -> Node:
    """The node whose last repetitions of a part are those of the other node's."""
    others = {path: entry for path, entry in entries(other) if isinstance(entry, tuple)}
    repeated = [
        (path, entry)
        for path, entry in entries(node)
        if isinstance(entry, tuple) and len(entry) > 1 and len(others.get(path, ())) > 1
    ]
    if not repeated:
        return node
    path, repetitions = _one_of(repeated, unit)
    more = others[path]
    begin = repetitions[: 1 + _below(len(repetitions), unit)]
    return with_entry(node, path, (*begin, *more[_below(len(more), unit) :]))


def _changed(node: Node, _other: Node, unit: Unit) -> Node:
    """The node without one entry, which is drawn again; half the time also without later ones."""
    shallow = [(place,) for place in range(len(node))]
    deep = [path for path, _ in entries(node)]
    path = _one_of(shallow if unit() < 0.5 else deep, unit)
    changed = with_entry(node, path, None)
    return changed if unit() < 0.5 else _cut_off(changed, path)


def _cut_off(node: Node, path: Path) -> Node:
    """The node without what comes behind this path in its part."""
    place, *rest = path
    if not rest:
        return node[: place + 1]
    index, *inner = rest
    repetitions = node[place]
    child = _cut_off(repetitions[index], tuple(inner))
    return with_entry(node, (place, index), child)
