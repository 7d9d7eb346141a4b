"""Smaller cases that show the same finding, whatever the policy.

The choices that a case was made of are made fewer and lower, as long as the finding stays the
same: first whole repetitions are left out, then numbers lowered. Bounded by the steps that it
runs, not by the clock, so that the same finding always shrinks to the same case.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from attrs import evolve, frozen

from checks.harness.case import Case
from checks.harness.choices import Earlier, Node


class Signed(Protocol):
    """A finding; two with the same signature count as the same."""

    @property
    def signature(self) -> Any:
        """What stays the same while the case gets smaller."""


FoundT = TypeVar("FoundT", bound=Signed)
Attempt: TypeAlias = Callable[[Case], tuple[FoundT | None, int]]
"""Runs a case: what was found, and the steps that it took."""
Draw: TypeAlias = Callable[[Node], Case | None]
"""The case that these choices make, or None where they make none that can be run."""


@frozen
class Shrunk(Generic[FoundT]):
    """The smallest case that was found, its finding, the runs and steps that it took."""

    case: Case
    finding: FoundT
    runs: int = 0
    steps: int = 0


def shrink(
    case: Case, finding: FoundT, draw: Draw, attempt: Attempt[FoundT], most_steps: int
) -> Shrunk[FoundT]:
    """The case made smaller until nothing simpler shows the finding, or the steps are used up.

    A case that was drawn nowhere (its choices are empty) stays as it is.
    """
    shrunk, position, fruitless = Shrunk(case, finding), 0, not case.choices
    while not fruitless:
        fruitless = position == 0  # a whole pass over the choices that finds nothing is the last
        simpler = enumerate(simpler_nodes(shrunk.case.choices))
        for place, node in islice(simpler, position, None):
            if shrunk.steps >= most_steps:
                return shrunk
            shrunk, better = _tried(shrunk, draw(node), attempt)
            if better:
                fruitless, position = False, place
                break
        else:
            position = 0
    return shrunk


def _tried(
    shrunk: Shrunk[FoundT], simpler: Case | None, attempt: Attempt[FoundT]
) -> tuple[Shrunk[FoundT], bool]:
    """What is known after one more run, and whether the simpler case shows the finding.

    Choices may be simpler than they look: what is drawn from them must be simpler, too, or the
    search would go round in circles.
    """
    if simpler is None or not is_simpler(simpler.choices, shrunk.case.choices):
        return shrunk, False
    found, steps = attempt(simpler)
    spent = evolve(shrunk, runs=shrunk.runs + 1, steps=shrunk.steps + steps + 1)
    if found is None or found.signature != shrunk.finding.signature:
        return spent, False
    return evolve(spent, case=evolve(simpler, swarm=None), finding=found), True


def is_simpler(node: Node, other: Node) -> bool:
    """True if it has fewer repetitions or, with as many, lower numbers before the others."""
    return _rank(node) < _rank(other)


def _rank(node: Node) -> tuple[int, list[int]]:
    repetitions, numbers = 0, []
    for entry in node:
        if isinstance(entry, tuple):
            repetitions += len(entry)
            for child in entry:
                inner, more = _rank(child)
                repetitions += inner
                numbers += more
        else:
            numbers.append(entry)
    return repetitions, numbers


def simpler_nodes(node: Node) -> Iterator[Node]:
    """Nodes with less in them, each by one change, the boldest first."""
    yield from _with_fewer(node)
    yield from _with_lower(node)


def _with_fewer(node: Node) -> Iterator[Node]:
    """Without a run of repetitions: half of them, a quarter, down to one; then the same inside."""
    for place, entry in enumerate(node):
        if isinstance(entry, tuple):
            size = len(entry)
            while size >= 1:
                for start in range(0, len(entry), size):
                    left = _without(entry, start, start + size)
                    yield (*node[:place], left, *node[place + 1 :])
                size //= 2
            yield from _inside(node, place, _with_fewer)


def _without(repetitions: Node, start: int, end: int) -> Node:
    """Without those from `start` to before `end`; what names a later one names it still."""

    def renumbered(entry: Any) -> Any:
        if not isinstance(entry, Earlier) or entry < start:
            return entry
        return Earlier(entry - (end - start) if entry >= end else max(start - 1, 0))

    behind = (tuple(map(renumbered, child)) for child in repetitions[end:])
    return (*repetitions[:start], *behind)


def _with_lower(node: Node) -> Iterator[Node]:
    """With one number lower: 0, then nearer and nearer; inside repetitions, too."""
    for place, entry in enumerate(node):
        if isinstance(entry, tuple):
            yield from _inside(node, place, _with_lower)
            continue
        for number in lower(entry):
            yield (*node[:place], type(entry)(number), *node[place + 1 :])


def _inside(node: Node, place: int, simpler: Callable[[Node], Iterator[Node]]) -> Iterator[Node]:
    entry = node[place]
    for index, child in enumerate(entry):
        for plain in simpler(child):
            inner = (*entry[:index], plain, *entry[index + 1 :])
            yield (*node[:place], inner, *node[place + 1 :])


def lower(number: int) -> Iterator[int]:
    """Smaller numbers down to 0: 0 itself, then nearer and nearer."""
    gap = number
    while gap:
        yield number - gap
        gap //= 2
