"""Smaller cases that show the same finding, whatever the policy.

The choices that a case was made of are made fewer and lower, as long as the finding stays the
same: first whole repetitions are left out, then a number becomes the simplest in all of them at
once, which makes runs short, then each is lowered. Bounded by the steps that it runs, so that the
same finding shrinks to the same case, and by a time only where one was asked for. An attempt ends
soon behind the step in which the finding shows: what shows it much later is not simpler.
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
_LATER = 2  # times the step of the finding, up to which an attempt goes on


Attempt: TypeAlias = Callable[[Case, int], tuple[Finding | None, int]]
"""Runs a case for at most so many steps: what was found, and the steps that it took."""
Draw: TypeAlias = Callable[[Node], Case | None]
"""The case that these choices make, or None where they make none that can be run."""


MOST_STEPS = 40_000  # of the runs in which a case is made small


@frozen
class Budget:
    """How much work a case is worth: steps, and up to which moment of `time.monotonic`.

    `progress` is called before each run with the runs so far and the requests that are left.
    """

    steps: int = MOST_STEPS
    until: float = inf
    progress: Callable[[int, int], None] = lambda _runs, _requests: None

    def end_reason(self, steps: int) -> str:
        """What ends the search after so many steps, or nothing."""
        if steps >= self.steps:
            return f"its limit of {self.steps:,} steps"
        if monotonic() >= self.until:
            return "the time that --time gives"
        return "a signal" if stopping() else ""


@frozen
class Shrunk:
    """The smallest case that was found, its finding, the runs and steps that it took.

    `cut`: what ended the search before nothing simpler was left, or nothing.
    """

    case: Case
    finding: Finding
    runs: int = 0
    steps: int = 0
    cut: str = ""

    @property
    def size(self) -> tuple[int, int]:
        """Requests, then their tokens: the smaller, the better."""
        requests = self.case.requests
        return len(requests), sum(request.prompt_len + request.max_tokens for request in requests)


def shrink(case: Case, finding: Finding, draw: Draw, attempt: Attempt, budget: Budget) -> Shrunk:
    """The case made smaller until nothing simpler shows the finding, or the budget is used up.

    A case that was drawn nowhere (its choices are empty) stays as it is. A signal ends it.
    """
    shrunk, position, fruitless = Shrunk(case, finding), 0, not case.choices
    while not fruitless:
        fruitless = position == 0  # a whole pass over the choices that finds nothing is the last
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
    """What is known after one more run, and whether the simpler case shows the finding.

    Choices may be simpler than they look: what is drawn from them must be simpler, too, or the
    search would go round in circles.
    """
    if simpler is None or not is_simpler(simpler.choices, shrunk.case.choices):
        return shrunk, False
    found, steps = attempt(simpler, _LATER * (shrunk.finding.step + 1))
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
    yield from _with_columns(node)
    yield from _with_lower(node)
    yield from _with_two_lower(node)


Path: TypeAlias = tuple[int, ...]
"""Where an entry is: its place in the node or, by turns, the repetition and the place in that."""


def _entries(node: Node, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """All entries with their places, each before those in it."""
    for place, entry in enumerate(node):
        yield (*path, place), entry
        if isinstance(entry, tuple):
            for index, child in enumerate(entry):
                yield from _entries(child, (*path, place, index))


def _with(node: Node, path: Path, entry: Any) -> Node:
    """The node with another entry at this place."""
    place, *rest = path
    if rest:
        entry = _with(node[place], tuple(rest), entry)
    return (*node[:place], entry, *node[place + 1 :])


def _with_columns(node: Node) -> Iterator[Node]:
    """With one number of a part at its simplest in all its repetitions."""
    for path, entry in _entries(node):
        if isinstance(entry, tuple) and len(entry) > 1:
            leaves = (leaf for child in entry for leaf in _entries(child))
            places = dict.fromkeys(
                place for place, value in leaves if isinstance(value, int) and value
            )
            for place in places:
                yield _with(node, path, tuple(_with_zero(child, place) for child in entry))


def _with_zero(node: Node, path: Path) -> Node:
    """The node with a 0 for the number at this place, if there is one."""
    numbers = (where for where, value in _entries(node) if not isinstance(value, tuple))
    return _with(node, path, 0) if path in numbers else node


def _with_fewer(node: Node) -> Iterator[Node]:
    """Without a run of repetitions: half of them, a quarter, down to one; or with a plain one."""
    for path, entry in _entries(node):
        if isinstance(entry, tuple):
            for start, end in _runs(len(entry)):
                yield _with(node, path, _without(entry, start, end))
            for index in range(len(entry)):
                yield _with(node, (*path, index), ())


def _runs(count: int) -> Iterator[tuple[int, int]]:
    """Ever shorter runs of repetitions, next to each other; short ones wherever they begin."""
    size = count
    while size >= 1:
        for start in range(0, count - size + 1, size if size > _SHORT_RUN else 1):
            yield start, start + size
        size = size // 2 if size > 2 * _SHORT_RUN else size - 1


def _without(repetitions: Node, start: int, end: int) -> Node:
    """Without those from `start` to before `end`; what names a later one names it still."""

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
    """With one number lower: 0, then nearer and nearer."""
    for path, entry in _entries(node):
        if not isinstance(entry, tuple):
            for number in lower(entry):
                yield _with(node, path, number)


def _with_two_lower(node: Node) -> Iterator[Node]:
    """With two numbers lower by as much: as far as can be, and by one."""
    numbers = [
        (path, value) for path, value in _entries(node) if not isinstance(value, tuple) and value
    ]
    for (path, number), (other_path, other) in combinations(numbers, 2):
        for gap in {min(number, other), 1}:
            yield _with(_with(node, path, number - gap), other_path, other - gap)


def lower(number: int) -> Iterator[int]:
    """Smaller numbers down to 0: 0 itself, then nearer and nearer."""
    gap = number
    while gap:
        yield number - gap
        gap //= 2
