"""Which release of a scheduler breaks which rule: the same random cases on each, judged alone.

What a release breaks is made small there; every small case is then run on every release, so that
each is shown with the smallest case that any of them led to.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from attrs import define, field, frozen

from checks.harness.campaign import (
    Batch,
    FirstSeen,
    Plan,
    Signature,
    on_all_systems,
    own_system,
    shows_alone,
    shrunk,
)
from checks.harness.case import Case
from checks.harness.comparison import Terms, judge_alone
from checks.harness.finding import Finding
from checks.harness.recording import fitted
from checks.harness.system import System

SHRINKING_STEPS = 4_000  # for each finding


@define
class Tally:
    """What became of the cases on one release.

    `times`: episodes in which something was found, by what it is; `first`: the case, its terms and
    what was found there, of the shortest of them.
    """

    episodes: int = 0
    steps: int = 0
    on_device: int = 0
    times: Counter[Signature] = field(factory=Counter)
    first: dict[Signature, FirstSeen] = field(factory=dict)

    def add(self, other: "Tally") -> None:
        """Take in what became of later cases."""
        self.episodes += other.episodes
        self.steps += other.steps
        self.on_device += other.on_device
        self.times.update(other.times)
        for cause, met in other.first.items():
            known = self.first.get(cause)
            if known is None or met.finding.step < known.finding.step:
                self.first[cause] = met


@frozen
class Small:
    """A small case, who showed what in it, and how it was served."""

    cause: Signature
    case: Case
    terms: Terms

    @property
    def size(self) -> tuple[int, int]:
        """Requests, then their tokens: the smaller, the better."""
        requests = self.case.requests
        return len(requests), sum(one.prompt_len + one.max_tokens for one in requests)


def _run_batch(plan: Plan, batch: Batch) -> Tally:
    """What becomes of a few cases."""
    tally, system = Tally(), own_system(plan.system)
    for index in batch:
        case, terms = plan.case(index), plan.terms_of(index)
        judged = judge_alone(system, case, terms)
        tally.add(
            Tally(
                episodes=1,
                steps=judged.steps,
                on_device=judged.on_device,
                times=Counter(dict.fromkeys(judged.findings, 1)),
                first={
                    cause: FirstSeen(index, case, terms, found)
                    for cause, found in judged.findings.items()
                },
            )
        )
    return tally


def tally(plan: Plan, batches: Iterable[Batch], progress: Callable[[Tally], None]) -> Tally:
    """The random cases of these batches on one release, on all cores.

    Raises:
        ConfigError: nothing can be drawn with the pinned keys.
        DriverError: the driver does not speak the protocol.
    """
    seen = Tally()
    for one in on_all_systems(plan, _run_batch, batches):
        seen.add(one)
        progress(seen)
    return seen


def small_cases(plan: Plan, seen: Tally) -> list[Small]:
    """What was found on this release, each made as small as it can be."""
    return [
        Small(cause, shrunk(plan, first, shows_alone, SHRINKING_STEPS).case, first.terms)
        for cause, first in sorted(seen.first.items(), key=lambda pair: pair[0])
    ]


def shown(system: System, cases: Sequence[Small]) -> dict[int, Finding]:
    """The findings that a release shows in small cases of any, by the number of the case."""
    found = {}
    for number, one in enumerate(cases):
        case = fitted(system.hello, one.case)
        if system.hello.can_do(case.config):
            judged = judge_alone(system, case, one.terms)
            if one.cause in judged.findings:
                found[number] = judged.findings[one.cause]
    return found


def chosen(cases: Sequence[Small], by_release: Sequence[Mapping[int, Finding]]) -> list[int]:
    """The numbers of the cases to tell of: of each cause the smallest that most releases show.

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
