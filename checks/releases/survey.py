"""Survey of releases: the same random cases on each, judged alone.

Each finding is shrunk on its release, and every small case runs on every release, so that each
finding is shown with the smallest case of any release. The page has a table of the broken rules by
release, and these cases.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from attrs import evolve, frozen

from checks.export.files import as_line
from checks.harness.campaigns.campaign import Campaign, shrunk
from checks.harness.campaigns.recording import fitted
from checks.harness.campaigns.shrinking import Budget
from checks.harness.case import Case
from checks.harness.comparison import Terms, compare
from checks.harness.finding import Finding, Kind, Signature
from checks.harness.system import System
from checks.registry import RULES
from checks.releases.markdown import block, table

SHRINKING_STEPS = 4_000  # the budget of each finding


@frozen
class Small:
    """A small case, the finding that it shows, and the terms of its run."""

    cause: Signature
    case: Case
    terms: Terms

    @property
    def size(self) -> tuple[int, int]:
        """The number of requests, then the number of their tokens."""
        requests = self.case.requests
        return len(requests), sum(request.prompt_len + request.max_tokens for request in requests)


def small_cases(seen: Campaign) -> list[Small]:
    """The findings of a release, each with its shrunk case."""
    return [
        Small(cause, shrunk(seen.plan, first, Budget(SHRINKING_STEPS)).case, first.terms)
        for cause, first in sorted(seen.first_seen.items())
    ]


def shown(system: System, cases: Sequence[Small]) -> dict[int, Finding]:
    """The findings that a release shows in the small cases, by index of the case."""
    findings = {}
    for number, small in enumerate(cases):
        case = fitted(system.hello, small.case)
        if system.hello.can_do(case.config):
            episode = compare(system, case, small.terms)
            if small.cause in episode.findings:
                findings[number] = episode.findings[small.cause]
    return findings


def chosen(cases: Sequence[Small], by_release: Sequence[Mapping[int, Finding]]) -> list[int]:
    """The indices of the cases to show: for each cause the smallest case that most releases show.

    Further cases of a cause follow only for releases that show none of the ones before.
    """
    picked: list[int] = []
    for cause in dict.fromkeys(small.cause for small in cases):
        numbers = [number for number, small in enumerate(cases) if small.cause == cause]
        lacking = {
            index
            for index, findings in enumerate(by_release)
            if any(number in findings for number in numbers)
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
    """The number of lacking releases that show the case, then its negative size."""
    requests, tokens = cases[number].size
    return sum(number in by_release[index] for index in lacking), -requests, -tokens


# --- the page -------------------------------------------------------------------------------------

_ORDER = {str(kind): place for place, kind in enumerate((Kind.CRASH, Kind.ENDLESS))}


@frozen
class Surveyed:
    """A release: its version, its campaign, and its findings in small cases."""

    version: str
    seen: Campaign
    shown: Mapping[int, Finding]


@frozen
class Page:
    """The content of the page.

    `span`: the command's argument for the versions. `paths`: the files of the shown cases, by
    index.
    """

    driver: str
    span: str
    releases: Sequence[Surveyed]
    cases: Sequence[Small]
    paths: Mapping[int, Path]

    @property
    def numbers(self) -> list[int]:
        """The indices of the shown cases, in the order of their causes."""
        causes = self.causes
        return sorted(
            self.paths, key=lambda number: (causes.index(self.cases[number].cause), number)
        )

    @property
    def causes(self) -> list[Signature]:
        """The causes in any release: crashes, then endless runs, then the others."""
        causes = {cause for release in self.releases for cause in release.seen.times}
        causes |= {self.cases[number].cause for number in self.paths}
        return sorted(causes, key=lambda cause: (_ORDER.get(cause[0], len(_ORDER)), cause))


def cause_title(cause: Signature) -> str:
    """The cause in one line."""
    kind, what = cause
    if what in RULES:
        return f"{what}: {RULES[what].sentence}"
    return what if kind == Kind.BROKEN_RULE else f"{kind}: {what}"


def table_lines(page: Page) -> Iterator[str]:
    """The table: a row for each cause, a column for each release."""
    rows = [
        ["random cases", *(f"{release.seen.episodes:,}" for release in page.releases)],
        ["steps judged", *(f"{release.seen.steps:,}" for release in page.releases)],
    ]
    for cause in page.causes:
        cells = [_cell(page, release, cause) for release in page.releases]
        numbers = [
            str(place)
            for place, number in enumerate(page.numbers, start=1)
            if page.cases[number].cause == cause
        ]
        case = f" (case {', '.join(numbers)})" if numbers else ""
        rows.append([f"{cause_title(cause)}{case}", *cells])
    yield from table(["", *(release.version for release in page.releases)], rows)


def _cell(page: Page, release: Surveyed, cause: Signature) -> str:
    """The number of random cases with the cause; "small" if only another's small case shows it."""
    times = release.seen.times[cause]
    if times:
        return f"{times:,}"
    shown = any(page.cases[number].cause == cause for number in release.shown)
    return "small" if shown else "-"


def case_lines(page: Page) -> Iterator[str]:
    """A section for each case: releases and steps that show it, its requests, its command."""
    for place, number in enumerate(page.numbers, start=1):
        case, path = page.cases[number], page.paths[number]
        yield from block(f"### Case {place}. {cause_title(case.cause)}")
        for release in page.releases:
            if number in release.shown:
                finding = release.shown[number]
                says = finding.broken[0][1] if finding.broken else finding.says
                yield f"- {release.version}, step {finding.step}: {says}"
        yield ""
        yield f"    {evolve(case.case, swarm=None).parameters}"
        for request in case.case.as_mapping()["requests"]:
            yield f"    {as_line(request)}"
        yield ""
        yield from block(f"Again: `lockstep bisect {path} --versions {page.span}`")


def page_lines(page: Page) -> Iterator[str]:
    """The lines of the page."""
    seed = page.releases[0].seen.plan.seed
    yield from block(f"# What releases of {page.driver} break")
    yield from block(
        f"Versions {page.span}, seed {seed}. The random cases are judged alone: by the rules, by",
        "the simulated device, and by whether the release counts its own blocks right; nothing is",
        "compared. A number says in how many of them something is broken; *small*: in none of",
        "them, but in a small case that another release led to.",
    )
    yield from block(
        *(f"- {release.version}: {release.seen.hello.release}" for release in page.releases)
    )
    yield from block(*table_lines(page))
    yield from block("## The smallest cases")
    yield from case_lines(page)
