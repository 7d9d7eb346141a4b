"""What conformance found, as an engineer would file it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from checks.conformance.campaign import Campaign
from checks.conformance.finding import Finding
from checks.conformance.leftout import NOT_COMPARED
from checks.export.files import as_line
from checks.fuzz.cases import Case
from checks.fuzz.compare import Difference
from checks.fuzz.corpus import as_json
from checks.fuzz.finding import Kind
from checks.fuzz.known import known_reasons
from checks.harness.driver.protocol import Hello
from checks.policies import RULES
from checks.releases.known import known_for

_MOST_DIFFERENCES = 8
_MOST_RULES = 4


def print_finding(screen: Console, hello: Hello, case: Case, finding: Finding) -> None:
    """Release, configuration, requests, the step, expected and found, the rules."""
    screen.print(f"[bold red]{finding.kind}[/bold red] in step {finding.step}: ", end="")
    screen.print(finding.says, markup=False, soft_wrap=True)
    screen.print(f"  release: {hello.release}", markup=False, soft_wrap=True)
    if finding.differences:
        screen.print(_side_by_side(hello.name, finding.differences))
    for rule, what in finding.rules[:_MOST_RULES]:
        screen.print(f"  {rule}, {what}: {RULES[rule].sentence}", markup=False, soft_wrap=True)
    screen.print(f"  configuration: {case.parameters}", markup=False, soft_wrap=True)
    for line in case_lines(case):
        screen.print(f"  {line}", markup=False, soft_wrap=True)


def case_lines(case: Case) -> Iterator[str]:
    """The requests as a workload writes them, then drafts and external tokens if there are any."""
    yield from (as_line(request) for request in case.as_mapping()["requests"])
    yield from (as_line({name: told}) for name, told in case.surroundings.items())


def _side_by_side(driver: str, differences: Sequence[Difference]) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 2))
    for column in ("field", "reference", driver):
        table.add_column(column, overflow="fold")
    for one in differences[:_MOST_DIFFERENCES]:
        table.add_row(f"{one.field} {one.place}".strip(), _shown(one.expected), _shown(one.found))
    if len(differences) > _MOST_DIFFERENCES:
        table.add_row(f"and {len(differences) - _MOST_DIFFERENCES} more", "", "")
    return table


def _shown(value: object) -> str:
    return "-" if value is None else escape(as_line(as_json(value)))


def counts_table(counts: Counter[str]) -> Table:
    """How often each kind of action happened, in two columns."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("action", "times", "", "action", "times"):
        table.add_column(column, justify="right" if column == "times" else "left")
    told = [(action, f"{times:,}") for action, times in sorted(counts.items())]
    half = -(-len(told) // 2)
    for left, right in zip_longest(told[:half], told[half:], fillvalue=("", "")):
        table.add_row(*left, "", *right)
    return table


def known_lines(hello: Hello, seen: Campaign) -> Iterator[str]:
    """Each row of the table of known differences: how often it was met, where it was missing."""
    for id_, row in known_for(hello.name, hello.release).items():
        met, missed = seen.known[id_], seen.missed[id_]
        told = "was not met" if met + missed == 0 else f"ended {counted(met, 'episode')}"
        yield f"{id_} {told}: {row.says} ({row.reason})"
        if missed:
            yield f"  {id_} did not show in {counted(missed, 'episode')} in which it was due"
    for rule, reason in known_reasons(hello.policy).items():
        if times := seen.excused[rule]:
            broken = f"{rule} is broken in {counted(times, 'step')}"
            told = f"no end of {counted(times, 'episode')}" if rule == Kind.ENDLESS else broken
            yield f"{told}, as known: {reason}"


def bounds_lines(hello: Hello, seen: Campaign) -> Iterator[str]:
    """What was not compared and not judged, and what never happened."""
    yield f"not compared: {', '.join((*NOT_COMPARED, *sorted(hello.left_out)))}"
    if seen.untold:
        told = ", ".join(f"{rule} ({what})" for rule, what in sorted(seen.untold.items()))
        yield f"not judged, for the driver does not tell what they ask for: {told}"
    if seen.never:
        yield f"never happened: {', '.join(seen.never)}"


def verdict(hello: Hello, seen: Campaign, terms: str, seconds: float) -> str:
    """What was found in how much work."""
    found = sum(seen.times.values())
    told = f"{found:,} findings" if found else "no unknown difference"
    rate = seen.steps / max(seconds, 1e-9)
    rules = len(seen.rules - set(seen.untold))
    return (
        f"{hello.name} ({hello.release}): {told} in {counted(seen.episodes, 'episode')},"
        f" {seen.steps:,} steps compared ({terms}),"
        f" {rules} rules judged in {seen.judged:,} of them,"
        f" {seen.on_device:,} done on our device; {seconds:.1f} s, {rate:,.0f} steps/s"
    )


def counted(count: int, what: str) -> str:
    """So many of them, in words."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
