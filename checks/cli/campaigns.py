"""What `fuzz` and `conform` have in common: a campaign of random cases, shown and reported."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from checks.cli.common import progress_bar
from checks.harness.campaign import Batches, Campaign, FirstSeen, Plan, campaign, own_system
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

Found = tuple[FirstSeen, Shrunk[Finding], Path, str]
"""A finding where it was met first and made small, its file, and the command that runs it again."""


def run_campaign(plan: Plan, seconds: float, episodes: int | None) -> tuple[Campaign, float]:
    """The campaign, with a bar of episodes or seconds; and the seconds that it took."""
    batches = Batches(plan.batch, episodes, seconds)
    total = round(seconds) if episodes is None else episodes
    with progress_bar("seconds" if episodes is None else "episodes", total) as show:

        def progress(seen: Campaign) -> None:
            done = round(batches.passed_seconds) if episodes is None else seen.episodes
            found = sum(seen.times.values())
            show(done, f"{seen.episodes:,} episodes, {seen.steps:,} steps, {found} found")

        seen = campaign(plan, batches, progress)
    return seen, batches.passed_seconds


def print_campaign(
    screen: Console, plan: Plan, seen: Campaign, findings: Iterable[Found], seconds: float
) -> None:
    """What happened, what is known, each finding, and the verdict."""
    hello = own_system(plan.system).hello
    screen.print(counts_table(seen))
    for line in (*bounds_lines(hello, seen), *known_lines(hello, seen)):
        screen.print(line, markup=False, soft_wrap=True)
    for first, small, _, again in findings:
        screen.print()
        print_finding(screen, hello, small.case, small.finding)
        times = seen.times[first.finding.signature]
        print_wrapped(screen, first_seen_line(plan, first, times))
        screen.print(f"  shrunk in {small.runs:,} runs, {small.steps:,} steps")
        screen.print(f"  again: {again}", markup=False, soft_wrap=True)
    screen.print()
    left_out = "" if not hello.unreported else f" without {', '.join(sorted(hello.unreported))}"
    terms = f"{plan.terms.strictness}{left_out}, seed {plan.seed}"
    screen.print(verdict(hello, seen, terms, seconds), markup=False, soft_wrap=True)


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
