"""What `fuzz` and `conform` have in common: a campaign of random cases, shown and reported."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from attrs import frozen
from rich.console import Console

from checks.cli.common import Option, gathered, pinned_keys, print_lines, progress_bar
from checks.harness.campaign import Batches, Campaign, FirstSeen, Plan, Source, campaign, own_system
from checks.harness.comparing import Strictness
from checks.harness.comparison import Terms
from checks.harness.finding import Finding
from checks.harness.report import (
    bounds_lines,
    counts_table,
    first_seen_line,
    known_lines,
    print_finding,
    print_wrapped,
    verdict,
)
from checks.harness.shrinking import Shrunk
from spec.core.errors import InputError

_SECONDS = 60.0  # unless --time or --episodes says otherwise

Found = tuple[FirstSeen, Shrunk[Finding], Path, str]
"""A finding where it was met first and made small, its file, and the command that runs it again."""


@frozen
class Extent:
    """Which episodes are drawn: how long, or how many; from which seed, with which keys set.

    Raises:
        InputError: both a time and a number are given.
    """

    seconds: float | None
    episodes: int | None
    seed: int
    settings: tuple[str, ...]

    def __attrs_post_init__(self) -> None:
        if self.seconds is not None and self.episodes is not None:
            raise InputError("--time", self.seconds, "not together with --episodes")

    def plan(self, source: Source, terms: Terms, batch: int = 1) -> Plan:
        """What a campaign does with this system.

        Raises:
            ConfigError: nothing can be drawn with the keys that are set.
            DriverError: the system cannot be started.
        """
        pinned = pinned_keys(self.settings, own_system(source).hello.policy)
        plan = Plan(source, self.seed, terms, pinned, batch)
        plan.case(0)  # what cannot be drawn is refused before anything runs
        return plan

    def run(self, plan: Plan) -> tuple[Campaign, float]:
        """The campaign, with a bar of episodes or seconds; and the seconds that it took."""
        by_time, seconds = self.episodes is None, self.seconds or _SECONDS
        batches = Batches(plan.batch, self.episodes, seconds)
        total = round(seconds) if by_time else self.episodes
        with progress_bar("seconds" if by_time else "episodes", total) as show:

            def progress(seen: Campaign) -> None:
                done = round(batches.passed_seconds) if by_time else seen.episodes
                found = sum(seen.times.values())
                show(done, f"{seen.episodes:,} episodes, {seen.steps:,} steps, {found} found")

            seen = campaign(plan, batches, progress)
        return seen, batches.passed_seconds


def extent_options(
    begun: str = "episode after S seconds of running", run: str = "episodes"
) -> Option:
    """`--time`, `--episodes` and `--seed`; with the command's `pinned_option` its `extent`."""
    return gathered(
        "extent",
        Extent,
        click.option(
            "--time",
            "seconds",
            type=click.FloatRange(0, min_open=True),
            help=f"Begin no {begun}.  [default: {_SECONDS:g}]",
        ),
        click.option("--episodes", type=click.IntRange(1), help=f"Run so many {run} instead."),
        click.option("--seed", type=click.IntRange(0), default=0, show_default=True),
    )


pinned_option = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Do not draw this key."
)
strictness_option = click.option(
    "--strictness",
    type=click.Choice([one.value for one in Strictness]),
    default=Strictness.EXACT.value,
    show_default=True,
    help="exact: every field; observable: what a trace shows; decisions: what was scheduled.",
)


def print_campaign(
    screen: Console, plan: Plan, seen: Campaign, findings: Iterable[Found], seconds: float
) -> None:
    """What happened, what is known, each finding, and the verdict."""
    hello = own_system(plan.system).hello
    screen.print(counts_table(seen))
    print_lines(screen, *bounds_lines(hello, seen), *known_lines(hello, seen))
    for first, small, _, again in findings:
        screen.print()
        print_finding(screen, hello, small.case, small.finding)
        times = seen.times[first.finding.signature]
        print_wrapped(screen, first_seen_line(plan, first, times))
        screen.print(f"  shrunk in {small.runs:,} runs, {small.steps:,} steps")
        print_lines(screen, f"  again: {again}")
    screen.print()
    left_out = "" if not hello.unreported else f" without {', '.join(sorted(hello.unreported))}"
    terms = f"{plan.terms.strictness}{left_out}, seed {plan.seed}"
    print_lines(screen, verdict(hello, seen, terms, seconds))


def campaign_report(
    plan: Plan, seen: Campaign, findings: Iterable[Found], seconds: float
) -> dict[str, Any]:
    """The fields that the reports of both commands have."""
    hello = own_system(plan.system).hello
    return {
        "policy": hello.policy,
        "seed": plan.seed,
        "strictness": plan.terms.strictness.value,
        "left_out": sorted(hello.unreported),
        "set": dict(plan.pinned),
        "episodes": seen.episodes,
        "steps": seen.steps,
        "interrupted": seen.interrupted,
        "actions": dict(sorted(seen.counts.items())),
        "never": seen.never,
        "findings": [
            {
                "kind": small.finding.kind.value,
                "cause": small.finding.cause,
                "says": small.finding.says,
                "rule": small.finding.rule,
                "rules": [rule for rule, _ in (*small.finding.broken, *small.finding.followed)],
                "step": small.finding.step,
                "episode": first.episode,
                "times": seen.times[first.finding.signature],
                "file": str(path),
                **small.case.as_mapping(),
            }
            for first, small, path, _ in findings
        ],
        "seconds": round(seconds, 3),
        "steps_per_second": round(seen.steps / max(seconds, 1e-9)),
    }
