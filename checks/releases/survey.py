"""Which release of a scheduler breaks which rule: the same random cases on each, judged alone.

What a release breaks is made small there; every small case is then run on every release, so that
each is shown with the smallest case that any of them led to.
"""

from collections.abc import Collection, Mapping, Sequence

from attrs import frozen

from checks.harness.campaign import Campaign, Plan, shrunk
from checks.harness.case import Case
from checks.harness.comparison import Terms, compare
from checks.harness.finding import Finding, Signature
from checks.harness.recording import fitted
from checks.harness.system import System

SHRINKING_STEPS = 4_000  # for each finding


@frozen
class Small:
    """A small case, what was found in it, and how it was served."""

    cause: Signature
    case: Case
    terms: Terms

    @property
    def size(self) -> tuple[int, int]:
        """Requests, then their tokens: the smaller, the better."""
        requests = self.case.requests
        return len(requests), sum(one.prompt_len + one.max_tokens for one in requests)


def small_cases(plan: Plan, seen: Campaign) -> list[Small]:
    """What was found on this release, each made as small as it can be."""
    return [
        Small(cause, shrunk(plan, first, SHRINKING_STEPS).case, first.terms)
        for cause, first in sorted(seen.first_seen.items())
    ]


def shown(system: System, cases: Sequence[Small]) -> dict[int, Finding]:
    """The findings that a release shows in small cases of any, by the number of the case."""
    found = {}
    for number, one in enumerate(cases):
        case = fitted(system.hello, one.case)
        if system.hello.can_do(case.config):
            episode = compare(system, case, one.terms)
            if one.cause in episode.findings:
                found[number] = episode.findings[one.cause]
    return found


def chosen(cases: Sequence[Small], by_release: Sequence[Mapping[int, Finding]]) -> list[int]:
    """The numbers of the cases to show: of each cause the smallest that most releases show.

    Further ones of the same cause only where a release does not show it in those before.
    """
    picked: list[int] = []
    for cause in dict.fromkeys(one.cause for one in cases):
        numbers = [number for number, one in enumerate(cases) if one.cause == cause]
        lacking = {
            index
            for index, found in enumerate(by_release)
            if any(number in found for number in numbers)
        }
        while lacking:
            best = max(numbers, key=lambda number: _worth(cases, by_release, lacking, number))
            picked.append(best)
            lacking -= {index for index in lacking if best in by_release[index]}
    return picked


def _worth(
    cases: Sequence[Small],
    by_release: Sequence[Mapping[int, Finding]],
    lacking: Collection[int],
    number: int,
) -> tuple[int, int, int]:
    """How many of those releases show the case, then how small it is."""
    requests, tokens = cases[number].size
    return sum(number in by_release[index] for index in lacking), -requests, -tokens
