"""Findings as people read them."""

from collections.abc import Iterator, Sequence
from textwrap import fill

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from checks.export.files import as_line
from checks.fuzz.campaign import Campaign, Met
from checks.fuzz.cases import Case
from checks.fuzz.compare import Difference
from checks.fuzz.corpus import as_json
from checks.fuzz.counts import ACTIONS
from checks.fuzz.finding import Finding
from checks.fuzz.known import known_reasons
from checks.policies import SPYRE
from spec.core.records import Event
from spec.spyre.rules import REGISTRY

_MOST_DIFFERENCES = 8  # the file has all
_MOST_RULES = 4
_WIDTH = 100


def print_finding(screen: Console, target: str, case: Case, finding: Finding) -> None:
    """The step, the differing fields side by side, the rules, and the workload."""
    screen.print(f"[bold red]{finding.kind}[/bold red] in step {finding.step}: {finding.says}")
    if finding.differences:
        screen.print(_side_by_side(target, finding.differences))
    for line in _rules(target, finding):
        print_wrapped(screen, line)
    print_wrapped(screen, f"  configuration: {case.parameters}")
    for request in case.as_mapping()["requests"]:
        screen.print(f"  {as_line(request)}", markup=False, soft_wrap=True)


def print_wrapped(screen: Console, line: str) -> None:
    """The line, its continuation further in than itself."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    wrapped = fill(line, _WIDTH, subsequent_indent=indent, break_long_words=False)
    screen.print(wrapped, markup=False, soft_wrap=True)


def _side_by_side(target: str, differences: Sequence[Difference]) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 2))
    for column in ("field", "reference", target):
        table.add_column(column, overflow="fold")
    for one in differences[:_MOST_DIFFERENCES]:
        name = f"{one.field} {one.place}".strip()
        table.add_row(name, _shown(one.expected), _shown(one.found))
    if len(differences) > _MOST_DIFFERENCES:
        table.add_row(f"and {len(differences) - _MOST_DIFFERENCES} more", "", "")
    return table


def _shown(value: object) -> str:
    if isinstance(value, Event):
        moved = "" if value.after is None else f" {value.before} -> {value.after}"
        return escape(f"{value.transition} {value.id}{moved} ({value.rule})")
    return "-" if value is None else escape(as_line(as_json(value)))


def _rules(target: str, finding: Finding) -> Iterator[str]:
    """Each rule once: what it says, what it has to do with the finding."""
    told: dict[str, list[str]] = {}
    if finding.followed is not None:
        rule, why = finding.followed
        told[rule] = [why]
    for rule, found in finding.broken:
        told.setdefault(rule, []).append(f"broken by {target}: {found}")
    for rule, lines in list(told.items())[:_MOST_RULES]:
        yield f"  {rule}: {REGISTRY[rule].sentence}"
        yield from (f"    {line}" for line in lines)
    if len(told) > _MOST_RULES:
        yield f"  and {len(told) - _MOST_RULES} more rules"


def counts_table(seen: Campaign) -> Table:
    """How often each kind of action happened, in two columns."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("action", "times", "", "action", "times"):
        table.add_column(column, justify="right" if column == "times" else "left")
    half = -(-len(ACTIONS) // 2)
    for left, right in zip(ACTIONS[:half], (*ACTIONS[half:], ""), strict=False):
        table.add_row(left, f"{seen.counts[left]:,}", "", right, _times(seen, right))
    return table


def _times(seen: Campaign, action: str) -> str:
    return f"{seen.counts[action]:,}" if action else ""


def known_lines(seen: Campaign) -> Iterator[str]:
    """Rules that did not hold where that is known, with the reason and how often."""
    for rule, reason in known_reasons(SPYRE.name).items():
        if seen.known[rule]:
            yield f"known: {rule} broken {seen.known[rule]:,} times: {reason}"


def where_met(seed: int, met: Met, times: int) -> str:
    """In which episode, how often, and what was drawn there."""
    often = "once" if times == 1 else f"{times:,} times, first"
    return f"  met {often} in episode {met.episode} of seed {seed}: {met.case.parameters}"
