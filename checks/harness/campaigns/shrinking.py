"""Shrinking: smaller cases that show the same finding, for every policy.

The choices of a case are removed and lowered as long as the finding stays the same: first whole
repetitions are removed, then a number is set to 0 in all repetitions at once, which shortens runs,
then single numbers are lowered. The search is bounded by the steps that it runs, so that the same
finding shrinks to the same case, and by a time if the caller sets one. An attempt ends soon after
the step of the finding: a case that shows it much later is not simpler.
"""

from collections.abc import Callable, Iterator
from itertools import combinations, islice
from math import inf
from time import monotonic
from typing import Any, TypeAlias

from attrs import evolve, frozen

from checks.ending import stopping
from checks.harness.case import Case
from checks.harness.choices import Earlier, Node
from checks.harness.finding import Finding

_SHORT_RUN = 3  # repetitions
_LATER = 2  # times the step of the finding: the most steps of an attempt


Attempt: TypeAlias = Callable[[Case, int], tuple[Finding | None, int]]
"""Runs a case for at most N steps; returns the finding, if any, and the number of steps."""
Draw: TypeAlias = Callable[[Node], Case | None]
"""The case that the choices make, or None if it cannot be run."""


MOST_STEPS = 40_000  # of all attempts to shrink a case


@frozen
class Budget:
    """The bounds of a search: its steps, and its end on the clock of `time.monotonic`.

    `progress` is called before each run with the number of runs and the requests of the case.
    """

    steps: int = MOST_STEPS
    until: float = inf
    progress: Callable[[int, int], None] = lambda _runs, _requests: None

    def end_reason(self, steps: int) -> str:
        """The reason to end the search after this number of steps, or empty."""
        if steps >= self.steps:
            return f"its limit of {self.steps:,} steps"
        if monotonic() >= self.until:
            return "the time that --time gives"
        return "a signal" if stopping() else ""


@frozen
class Shrunk:
    """The smallest case that shows the finding, and the runs and steps of the search.

    `cut`: the reason why the search ended early, or empty.
    """

    case: Case
    finding: Finding
    runs: int = 0
    steps: int = 0
    cut: str = ""

    @property
    def size(self) -> tuple[int, int]:
        """The number of requests, then the number of their tokens."""
        requests = self.case.requests
        return len(requests), sum(request.prompt_len + request.max_tokens for request in requests)


def shrink(case: Case, finding: Finding, draw: Draw, attempt: Attempt, budget: Budget) -> Shrunk:
    """Shrink the case until no simpler one shows the finding, or the budget or a signal ends it.

    A case that was not drawn (its choices are empty) is returned unchanged.
    """
    shrunk, position, fruitless = Shrunk(case, finding), 0, not case.choices
    while not fruitless:
        fruitless = position == 0  # the search ends after a whole pass without a simpler case
        simpler = enumerate(simpler_nodes(shrunk.case.choices))
        for place, node in islice(simpler, position, None):
            if cut := budget.end_reason(shrunk.steps):
                return evolve(shrunk, cut=cut)
            budget.progress(shrunk.runs, len(shrunk.case.requests))
            shrunk, better = _tried(shrunk, draw(node), attempt)
            if better:
                fruitless, position = False, place
                break
        else:
            position = 0
    return shrunk


def _tried(shrunk: Shrunk, simpler: Case | None, attempt: Attempt) -> tuple[Shrunk, bool]:
    """The state of the search after one more run, and whether the simpler case shows the finding.

    The case may draw other choices than its node has: they must be simpler, too, or the search
    would not end.
    """
    if simpler is None or not is_simpler(simpler.choices, shrunk.case.choices):
        return shrunk, False
    finding, steps = attempt(simpler, _LATER * (shrunk.finding.step + 1))
    spent = evolve(shrunk, runs=shrunk.runs + 1, steps=shrunk.steps + steps + 1)
    if finding is None or finding.signature != shrunk.finding.signature:
        return spent, False
    return evolve(spent, case=evolve(simpler, swarm=None), finding=finding), True


def is_simpler(node: Node, other: Node) -> bool:
    """True if the node has fewer repetitions or, with equally many, lower numbers in order."""
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
    """Simpler nodes, each with one change, the largest changes first."""
    yield from _with_fewer(node)
    yield from _with_columns(node)
    yield from _with_lower(node)
    yield from _with_two_lower(node)


Path: TypeAlias = tuple[int, ...]
"""The path of an entry: its index in the node, then by turns a repetition and an index in it."""


def entries(node: Node, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """All entries with their paths, each before those in it."""
    for place, entry in enumerate(node):
        yield (*path, place), entry
        if isinstance(entry, tuple):
            for index, child in enumerate(entry):
                yield from entries(child, (*path, place, index))


def with_entry(node: Node, path: Path, entry: Any) -> Node:
    """The node with another entry at this path."""
    place, *rest = path
    if rest:
        entry = with_entry(node[place], tuple(rest), entry)
    return (*node[:place], entry, *node[place + 1 :])


def _with_columns(node: Node) -> Iterator[Node]:
    """Nodes with one number of a part set to 0 in all its repetitions."""
    for path, entry in entries(node):
        if isinstance(entry, tuple) and len(entry) > 1:
            leaves = (leaf for child in entry for leaf in entries(child))
            places = dict.fromkeys(
                place for place, value in leaves if isinstance(value, int) and value
            )
            for place in places:
                yield with_entry(node, path, tuple(_with_zero(child, place) for child in entry))


def _with_zero(node: Node, path: Path) -> Node:
    """The node with 0 for the number at this path, if there is one."""
    numbers = (where for where, value in entries(node) if not isinstance(value, tuple))
    return with_entry(node, path, 0) if path in numbers else node


def _with_fewer(node: Node) -> Iterator[Node]:
    """Nodes without some consecutive repetitions, long runs first, or with one emptied."""
    for path, entry in entries(node):
        if isinstance(entry, tuple):
            for start, end in _runs(len(entry)):
                yield with_entry(node, path, without_repetitions(entry, start, end))
            for index in range(len(entry)):
                yield with_entry(node, (*path, index), ())


def _runs(count: int) -> Iterator[tuple[int, int]]:
    """Ever shorter runs of repetitions: long ones side by side, short ones from every start."""
    size = count
    while size >= 1:
        for start in range(0, count - size + 1, size if size > _SHORT_RUN else 1):
            yield start, start + size
        size = size // 2 if size > 2 * _SHORT_RUN else size - 1


def without_repetitions(repetitions: Node, start: int, end: int) -> Node:
    """The repetitions without `start` to `end` (not included); references are renumbered."""

    def renumbered(entry: Any) -> Any:
        if not isinstance(entry, Earlier) or entry < start:
            return entry
        return Earlier(entry - (end - start) if entry >= end else max(start - 1, 0))

    def moved(child: Node) -> Node:
        return tuple(
            tuple(map(moved, entry)) if isinstance(entry, tuple) else renumbered(entry)
            for entry in child
        )

    return (*repetitions[:start], *map(moved, repetitions[end:]))


def _with_lower(node: Node) -> Iterator[Node]:
    """Nodes with one number lowered: to 0, then nearer and nearer to its value."""
    for path, entry in entries(node):
        if not isinstance(entry, tuple):
            for number in lower(entry):
                yield with_entry(node, path, number)


def _with_two_lower(node: Node) -> Iterator[Node]:
    """Nodes with two numbers lowered by the same amount: as far as possible, and by 1."""
    numbers = [
        (path, value) for path, value in entries(node) if not isinstance(value, tuple) and value
    ]
    for (path, number), (other_path, other) in combinations(numbers, 2):
        for gap in {min(number, other), 1}:
            yield with_entry(with_entry(node, path, number - gap), other_path, other - gap)


def lower(number: int) -> Iterator[int]:
    """Numbers below `number`: 0, then nearer and nearer to it."""
    gap = number
    while gap:
        yield number - gap
        gap //= 2
