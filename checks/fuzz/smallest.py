"""The loop that makes cases smaller, whoever runs them."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from attrs import evolve, frozen

from checks.fuzz.cases import Case


class Shows(Protocol):
    """A finding; two with the same signature count as the same."""

    @property
    def signature(self) -> Any:
        """What stays the same while the case gets smaller."""


Found = TypeVar("Found", bound=Shows)
Attempt = Callable[[Case], tuple[Found | None, int] | None]
"""Runs a case: what was found, and the steps that it took; None if the case cannot be run."""


@frozen
class Shrunk(Generic[Found]):
    """The smallest case that was found, its finding, the runs and steps that it took."""

    case: Case
    finding: Found
    runs: int = 0
    steps: int = 0


def smallest(
    first: Shrunk[Found],
    attempt: Attempt[Found],
    simpler_cases: Callable[[Case], Iterator[Case]],
    most_steps: int,
) -> Shrunk[Found]:
    """The case made smaller until nothing simpler shows the finding, or the steps are used up."""
    shrunk, position, fruitless = first, 0, False
    while not fruitless:
        fruitless = position == 0  # a whole pass over the choices that finds nothing is the last
        for choice, simpler in islice(enumerate(simpler_cases(shrunk.case)), position, None):
            if shrunk.steps >= most_steps:
                return shrunk
            shrunk, better = _tried(shrunk, simpler, attempt)
            if better:
                fruitless, position = False, choice
                break
        else:
            position = 0
    return shrunk


def _tried(
    shrunk: Shrunk[Found], simpler: Case, attempt: Attempt[Found]
) -> tuple[Shrunk[Found], bool]:
    """What is known after one more run, and whether the simpler case shows the finding."""
    ran = attempt(simpler)
    if ran is None:
        return shrunk, False
    found, steps = ran
    spent = evolve(shrunk, runs=shrunk.runs + 1, steps=shrunk.steps + steps)
    if found is None or found.signature != shrunk.finding.signature:
        return spent, False
    return evolve(spent, case=simpler, finding=found), True
