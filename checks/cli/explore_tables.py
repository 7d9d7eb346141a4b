"""What `lockstep explore` prints: what is offered, what was explored, what is broken."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from checks.explore.exploring import AnyInstance, Exploration, Finding, sentence
from checks.policies import title_of


def catalogue(offered: Sequence[AnyInstance]) -> Table:
    """The instances that are offered, by title."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("instance", "requests", "about"):
        table.add_column(column, overflow="fold")
    for instance in offered:
        table.add_row(title_of(instance), str(len(instance.requests)), instance.about)
    return table


def counts(found: Sequence[Exploration]) -> Table:
    """What was explored, a line each."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("instance", overflow="fold")
    for column in ("states", "transitions", "depth", "states/s", "bytes/state"):
        table.add_column(column, justify="right")
    table.add_column("verdict", overflow="fold")
    for one in found:
        rate = one.states / one.seconds if one.seconds else 0
        table.add_row(
            title_of(one.instance),
            f"{one.states:,}",
            f"{one.transitions:,}",
            str(one.depth),
            f"{rate:,.0f}",
            f"{one.bytes_per_state:,.0f}",
            _verdict(one),
        )
    return table


def _verdict(one: Exploration) -> str:
    unless_complete = "" if one.is_complete else f"incomplete ({one.stopped_by}), "
    if one.findings:
        return f"{unless_complete}refuted: {', '.join(finding.rule for finding in one.findings)}"
    return unless_complete + f"{len(one.rules)} rules hold" + ("" if one.is_complete else " so far")


def print_finding(screen: Console, one: Exploration, finding: Finding, path: Path) -> None:
    """A broken rule: what it says, what was found, after which actions, and how to replay it."""
    screen.print()
    screen.print(f"[bold red]{finding.rule}[/bold red] is broken in '{title_of(one.instance)}'")
    screen.print(f"  says: {sentence(finding.rule)}")
    screen.print(f"  found: {finding.found}")
    screen.print(f"  after: {', '.join(finding.actions)}")
    screen.print(f"  replay: lockstep replay {path}")
