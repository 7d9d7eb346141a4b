"""Findings and campaigns as text and tables."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from checks.export.files import as_line
from checks.export.printable import wrapped
from checks.harness.campaigns.campaign import Campaign, Found
from checks.harness.campaigns.wording import reported
from checks.harness.case import Case
from checks.harness.comparing import Difference, plain_json
from checks.harness.coverage import PAIRED
from checks.harness.finding import Finding, Kind
from checks.harness.policy import evidence_of
from checks.harness.situations import all_situations
from checks.harness.system import Hello
from checks.harness.unreported import NOT_COMPARED
from checks.registry import RULES
from checks.words import counted
from spec.core.records import Event

MOST_DIFFERENCES = 8  # printed; the file has all
MOST_RULES = 4
_MOST_FIELDS = 4  # printed as lines, outside a table
_RAREST = 5  # pairs
_SHOWN_SECONDS = 0.5  # shorter work beside the episodes is not printed


def print_finding(screen: Console, hello: Hello, case: Case, finding: Finding) -> None:
    """Print a finding: headline, differing fields, rules that the reference followed, case."""
    screen.print(Text(wrapped(finding.headline), "bold red"), soft_wrap=True)
    print_wrapped(screen, f"  {finding.evidence}")
    if hello.release != hello.name:
        screen.print(f"  release: {hello.release}", markup=False, soft_wrap=True)
    if finding.differences:
        print_wrapped(screen, f"  differs in step {finding.step}:")
        screen.print(_side_by_side(hello.name, reported(case, finding.differences)))
    for line in _rules_followed(finding):
        print_wrapped(screen, line)
    print_wrapped(screen, f"  configuration: {case.parameters}")
    for line in case_lines(case):
        screen.print(f"  {line}", markup=False, soft_wrap=True)


def finding_lines(name: str, case: Case, finding: Finding) -> Iterator[str]:
    """A finding for CI systems: at most a dozen lines without a table."""
    yield finding.headline
    yield finding.evidence
    differences = reported(case, finding.differences)
    for difference in differences[:_MOST_FIELDS]:
        place = f"{difference.field} {difference.place}".strip()
        had = f"{name} {shown(difference.found)}, expected {shown(difference.expected)}"
        yield f"step {finding.step}, {place}: {had}"
    if len(differences) > _MOST_FIELDS:
        yield f"and {counted(len(differences) - _MOST_FIELDS, 'more field')}"
    yield f"configuration: {case.parameters}"
    yield f"requests: {' '.join(as_line(request) for request in case.as_mapping()['requests'])}"
    yield from (as_line({name: what}) for name, what in case.surroundings.items())


def print_wrapped(screen: Console, line: str) -> None:
    """Print the line, wrapped with an indented continuation."""
    screen.print(wrapped(line), markup=False, soft_wrap=True)


def case_lines(case: Case) -> Iterator[str]:
    """The requests as lines of a workload, then the surroundings, if any."""
    yield from (as_line(request) for request in case.as_mapping()["requests"])
    yield from (as_line({name: what}) for name, what in case.surroundings.items())
    if case.path:
        yield as_line({"path": case.path})


def _side_by_side(name: str, differences: Sequence[Difference]) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 2))
    for column in ("field", "expected", name):
        table.add_column(column, overflow="fold")
    for difference in differences[:MOST_DIFFERENCES]:
        place = f"{difference.field} {difference.place}".strip()
        table.add_row(place, escape(shown(difference.expected)), escape(shown(difference.found)))
    if len(differences) > MOST_DIFFERENCES:
        table.add_row(f"and {len(differences) - MOST_DIFFERENCES} more", "", "")
    return table


def shown(value: object) -> str:
    """The value of a field as text; "-" for None."""
    if isinstance(value, Event):
        changed = f" {shown(value.before)} -> {shown(value.after)}" * (value.after is not None)
        return " ".join(filter(None, (value.transition, f"{value.id}{changed}", f"({value.rule})")))
    return "-" if value is None else as_line(plain_json(value))


def _rules_followed(finding: Finding) -> Iterator[str]:
    """The first MOST_RULES rules that the reference followed in the step, with their sentences."""
    if finding.followed:
        yield "  the reference followed there:"
    for rule, what in finding.followed[:MOST_RULES]:
        yield f"    {rule} ({what}): {RULES[rule].sentence}"
    if len(finding.followed) > MOST_RULES:
        yield f"    and {counted(len(finding.followed) - MOST_RULES, 'more rule')}"


def counts_table(seen: Campaign) -> Table:
    """The count of each kind of action, in two columns."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("action", "times", "", "action", "times"):
        table.add_column(column, justify="right" if column == "times" else "left")
    counts = dict.fromkeys(evidence_of(seen.policy).labels.actions, 0) | seen.counts
    cells = [(action, f"{times:,}") for action, times in counts.items()]
    half = -(-len(cells) // 2)
    for left, right in zip_longest(cells[:half], cells[half:], fillvalue=("", "")):
        table.add_row(*left, "", *right)
    return table


def bounds_lines(seen: Campaign) -> Iterator[str]:
    """The fields that were not compared, the rules that did not judge, the actions never seen."""
    if "events" not in seen.hello.abilities:
        yield f"not compared: {', '.join((*NOT_COMPARED, *sorted(seen.hello.unreported)))}"
    lacking: dict[str, list[str]] = {}
    for rule, what in sorted(seen.not_evaluated.items()):
        lacking.setdefault(what, []).append(rule)
    for what, rules in sorted(lacking.items()):
        yield f"not judged, for the driver does not report `{what}`: {', '.join(rules)}"
    if seen.never:
        yield f"never happened: {'; '.join(seen.never)}"


def pairs_line(seen: Campaign) -> str:
    """The number of event and transition pairs that occurred, and the rarest."""
    events, kinds = ({pair.split(PAIRED)[side] for pair in seen.pairs} for side in (0, 1))
    rarest = sorted(seen.pairs, key=lambda pair: (seen.pairs[pair], pair))[:_RAREST]
    often = ", ".join(f"{pair} {seen.pairs[pair]:,}" for pair in rarest)
    of = f"{len(events) * len(kinds):,} pairs of an event and a transition of its step or the next"
    return f"met {len(seen.pairs):,} of {of}; the rarest: {often or '-'}"


def situations_lines(seen: Campaign) -> Iterator[str]:
    """The number of situations that were reached, and advice for rare ones that were not."""
    table = evidence_of(seen.policy).labels.situations
    if not table:
        return
    of = f"{len(all_situations(table)):,} situations (a transition with values of its request)"
    kept = counted(len(seen.kept), "sequence")
    yield f"reached {len(seen.situations):,} of {of}; kept {kept} of choices that reached a new one"
    yield from map(str, seen.unreached)


def known_lines(seen: Campaign) -> Iterator[str]:
    """Known differences and expected violations: counts, reasons, and overdue differences."""
    for row in evidence_of(seen.policy).release_differences(seen.hello):
        ended, overdue = seen.known[row.id], seen.overdue[row.id]
        often = "was not met" if ended + overdue == 0 else f"ended {counted(ended, 'episode')}"
        yield f"{row.id} {often}: {row.says} ({row.reason})"
        if overdue:
            yield f"  {row.id} did not show in {counted(overdue, 'episode')} in which it was due"
    yield from expected_lines(seen)


def expected_lines(seen: Campaign, config: Any = None) -> Iterator[str]:
    """Expected violations that were met: counts, and reasons under this configuration, or any."""
    for rule, reason in evidence_of(seen.policy).expected_reasons(config).items():
        if times := seen.expected[rule]:
            broken = f"{rule} is broken in {counted(times, 'step')}"
            often = f"no end of {counted(times, 'episode')}" if rule == Kind.ENDLESS else broken
            yield f"{often}, as known: {reason}"


def first_seen_line(seen: Campaign, found: Found) -> str:
    """How often a finding was met, and the first episode with its drawn parameters."""
    first, seed = found.first, seen.plan.seed
    often = "once" if found.times == 1 else f"{found.times:,} times, first"
    where = (
        "on a path of the worlds"
        if first.case.path
        else f"in episode {first.episode} of seed {seed}"
    )
    return f"  met {often} {where}: {first.case.parameters}"


def verdict(seen: Campaign, found: int) -> str:
    """The summary line of a campaign; `found`: the number of different causes."""
    hello, plan = seen.hello, seen.plan
    unreported = ", ".join(sorted(hello.unreported))
    without = f" without {unreported}" if unreported else ""
    what = counted(found, "finding") if found else "no unknown difference"
    what = f"interrupted; {what}" if seen.interrupted else what
    name = hello.name if hello.release == hello.name else f"{hello.name} ({hello.release})"
    terms = f"{plan.terms.strictness}{without}, seed {plan.seed}"
    parts = [
        f"{name}: {what} in {counted(seen.episodes, 'episode')}",
        f"{counted(seen.steps, 'step')} compared ({terms})",
    ]
    if seen.judged:
        parts.append(f"{counted(len(seen.judged_rules), 'rule')} judged in {seen.judged:,} of them")
    if seen.on_device:
        parts.append(f"{seen.on_device:,} done on our device")
    rate = seen.steps / max(seen.seconds, 1e-9)
    beside = {"starting": seen.start_seconds, "shrinking": seen.shrink_seconds}
    others = "".join(f", {what} {s:.1f} s" for what, s in beside.items() if s >= _SHOWN_SECONDS)
    return f"{', '.join(parts)}; {seen.seconds:.1f} s, {rate:,.0f} steps/s{others}"
