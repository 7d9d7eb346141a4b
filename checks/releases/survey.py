"""Which release of a scheduler breaks which rule: the same random cases on each, judged alone.

What a release breaks is made small there; every small case is then run on every release, so that
each is shown with the smallest case that any of them led to. The page has a table of what each
breaks, and these cases.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from attrs import evolve, frozen

from checks.export.files import as_line
from checks.harness.campaign import Campaign, shrunk
from checks.harness.case import Case
from checks.harness.comparison import Terms, compare
from checks.harness.finding import Finding, Kind, Signature
from checks.harness.recording import fitted
from checks.harness.shrinking import Budget
from checks.harness.system import System
from checks.registry import RULES
from checks.releases.markdown import block, table

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


def small_cases(seen: Campaign) -> list[Small]:
    """What was found on this release, each made as small as it can be."""
    return [
        Small(cause, shrunk(seen.plan, first, Budget(SHRINKING_STEPS)).case, first.terms)
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


# --- the page -------------------------------------------------------------------------------------

_ORDER = {str(kind): place for place, kind in enumerate((Kind.CRASH, Kind.ENDLESS))}


@frozen
class Surveyed:
    """A release: its version, what random cases and small ones showed."""

    version: str
    seen: Campaign
    shown: Mapping[int, Finding]


@frozen
class Page:
    """All that the page shows.

    `span`: the versions as the command was given them. `paths`: the files of the cases that are
    shown, by number.
    """

    driver: str
    span: str
    releases: Sequence[Surveyed]
    cases: Sequence[Small]
    paths: Mapping[int, Path]

    @property
    def numbers(self) -> list[int]:
        """Of the cases that are shown, in the order of what they show."""
        causes = self.causes
        return sorted(
            self.paths, key=lambda number: (causes.index(self.cases[number].cause), number)
        )

    @property
    def causes(self) -> list[Signature]:
        """What is broken in any of them: what ends the server first."""
        found = {cause for one in self.releases for cause in one.seen.times}
        found |= {self.cases[number].cause for number in self.paths}
        return sorted(found, key=lambda cause: (_ORDER.get(cause[0], len(_ORDER)), cause))


def title_of(cause: Signature) -> str:
    """What is broken, in a line."""
    kind, what = cause
    if what in RULES:
        return f"{what}: {RULES[what].sentence}"
    return what if kind == Kind.BROKEN_RULE else f"{kind}: {what}"


def table_lines(page: Page) -> Iterator[str]:
    """The table: a row for each thing that is broken, a column for each release."""
    rows = [
        ["random cases", *(f"{one.seen.episodes:,}" for one in page.releases)],
        ["steps judged", *(f"{one.seen.steps:,}" for one in page.releases)],
    ]
    for cause in page.causes:
        cells = [_cell(page, one, cause) for one in page.releases]
        numbers = [
            str(place)
            for place, number in enumerate(page.numbers, start=1)
            if page.cases[number].cause == cause
        ]
        case = f" (case {', '.join(numbers)})" if numbers else ""
        rows.append([f"{title_of(cause)}{case}", *cells])
    yield from table(["", *(one.version for one in page.releases)], rows)


def _cell(page: Page, release: Surveyed, cause: Signature) -> str:
    """In how many random cases it was found; `small` if only in a small case of another release."""
    times = release.seen.times[cause]
    if times:
        return f"{times:,}"
    shown = any(page.cases[number].cause == cause for number in release.shown)
    return "small" if shown else "-"


def case_lines(page: Page) -> Iterator[str]:
    """Each case: which release shows it in which step; its requests, and how to run it again."""
    for place, number in enumerate(page.numbers, start=1):
        case, path = page.cases[number], page.paths[number]
        yield from block(f"### Case {place}. {title_of(case.cause)}")
        for one in page.releases:
            if number in one.shown:
                found = one.shown[number]
                says = found.broken[0][1] if found.broken else found.says
                yield f"- {one.version}, step {found.step}: {says}"
        yield ""
        yield f"    {evolve(case.case, swarm=None).parameters}"
        for request in case.case.as_mapping()["requests"]:
            yield f"    {as_line(request)}"
        yield ""
        yield from block(f"Again: `lockstep bisect {path} --versions {page.span}`")


def page_lines(page: Page) -> Iterator[str]:
    """The whole page."""
    seed = page.releases[0].seen.plan.seed
    yield from block(f"# What releases of {page.driver} break")
    yield from block(
        f"Versions {page.span}, seed {seed}. The random cases are judged alone: by the rules, by",
        "the simulated device, and by whether the release counts its own blocks right; nothing is",
        "compared. A number says in how many of them something is broken; *small*: in none of",
        "them, but in a small case that another release led to.",
    )
    yield from block(*(f"- {one.version}: {one.seen.hello.release}" for one in page.releases))
    yield from block(*table_lines(page))
    yield from block("## The smallest cases")
    yield from case_lines(page)
