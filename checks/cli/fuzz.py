"""`lockstep fuzz`: random cases, a target and the reference step by step."""

from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import click
from rich.console import Console

from checks.cli.common import (
    CAMPAIGN_SECONDS,
    NEW_DIRECTORY,
    campaign_options,
    console,
    json_option,
    pinned_keys,
    pinned_option,
    progress_bar,
    write_json,
)
from checks.cli.conform import conform
from checks.fuzz.campaign import Campaign, Plan, batches_for, batches_of, campaign, shrunk
from checks.fuzz.compare import Strictness
from checks.fuzz.corpus import write_finding
from checks.fuzz.lockstep import Terms
from checks.fuzz.report import counts_table, known_lines, print_finding, print_wrapped, where_met
from checks.fuzz.shrink import Shrunk
from checks.fuzz.subjects import ENGINE, SUBJECTS
from spec.core.errors import InputError


@click.command()
@click.option(
    "--target",
    default=ENGINE.name,
    show_default=True,
    help=f"Who is held against the reference: {', '.join(SUBJECTS)}, or a driver as for conform.",
)
@campaign_options
@click.option("--judge", is_flag=True, help="Hold every rule against the target's steps, too.")
@pinned_option
@click.option(
    "--corpus",
    type=NEW_DIRECTORY,
    default=Path("corpus"),
    show_default=True,
    help="Directory for findings.",
)
@json_option
def fuzz(
    target: str,
    seconds: float | None,
    episodes: int | None,
    seed: int,
    strictness: str,
    judge: bool,
    settings: tuple[str, ...],
    corpus: Path,
    json_path: Path | None,
) -> int:
    """Serve random cases with a target and with the reference, and compare every step.

    Each episode draws a configuration and requests; whole kinds of action are switched off in it,
    the others skewed. Both serve them until nobody is left and nothing is held. What differs is
    made as small as it can be and written into the corpus, with the command that replays it. With
    --episodes the answer is the same for the same seed, on every machine.
    """
    if seconds is not None and episodes is not None:
        raise InputError("--time", seconds, "not together with --episodes")
    if target not in SUBJECTS:
        return _with_driver(
            target, seconds, episodes, seed, strictness, settings, corpus, json_path
        )
    plan = Plan(SUBJECTS[target], seed, Terms(Strictness(strictness), judge), pinned_keys(settings))
    plan.case(0)  # what cannot be drawn is refused before anything runs
    screen = console(json_path)
    began = monotonic()
    seen = _run(plan, seconds or CAMPAIGN_SECONDS, episodes)
    took = monotonic() - began
    findings = shrunk(plan, seen.met.values())
    paths = [write_finding(corpus, target, one.case, one.finding, plan.terms) for one in findings]
    _tell(screen, plan, seen, findings, paths, took)
    write_json(_report(plan, seen, findings, paths, took), json_path)
    if findings:
        return 1
    return 3 if seen.interrupted else 0


def _with_driver(
    driver: str,
    seconds: float | None,
    episodes: int | None,
    seed: int,
    strictness: str,
    settings: tuple[str, ...],
    corpus: Path,
    json_path: Path | None,
) -> int:
    """The campaign for released schedulers, which judges every rule in any case.

    Raises:
        InputError: there is no such driver, or it is not installed.
    """
    return int(
        conform.callback(  # type: ignore[misc]
            driver=driver,
            seconds=seconds,
            episodes=episodes,
            seed=seed,
            strictness=strictness,
            settings=settings,
            case_path=None,
            recorded=False,
            findings=corpus,
            recorded_verdicts=False,
            report=None,
            json_path=json_path,
        )
    )


def _run(plan: Plan, seconds: float, episodes: int | None) -> Campaign:
    """The campaign, with a bar of episodes or seconds."""
    began = monotonic()
    total = round(seconds) if episodes is None else episodes
    batches = batches_for(seconds) if episodes is None else batches_of(episodes)
    with progress_bar("seconds" if episodes is None else "episodes", total) as show:

        def progress(seen: Campaign) -> None:
            done = round(monotonic() - began) if episodes is None else seen.episodes
            found = sum(seen.times.values())
            show(done, f"{seen.episodes:,} episodes, {seen.steps:,} steps, {found} found")

        return campaign(plan, batches, progress)


def _tell(
    screen: Console,
    plan: Plan,
    seen: Campaign,
    findings: Sequence[Shrunk],
    paths: Sequence[Path],
    seconds: float,
) -> None:
    name = plan.subject.name
    screen.print(counts_table(seen))
    if seen.never:
        screen.print(f"[bold]never happened:[/bold] {', '.join(seen.never)}")
    for line in known_lines(seen):
        screen.print(line)
    for met, one, path in zip(seen.met.values(), findings, paths, strict=True):
        screen.print()
        print_finding(screen, name, one.case, one.finding)
        print_wrapped(screen, where_met(plan.seed, met, seen.times[met.finding.signature]))
        screen.print(f"  shrunk in {one.runs:,} runs, {one.steps:,} steps")
        screen.print(f"  replay: lockstep replay {path} --target {name}", soft_wrap=True)
    screen.print()
    screen.print(_verdict(plan, seen, seconds), soft_wrap=True)


def _verdict(plan: Plan, seen: Campaign, seconds: float) -> str:
    """What was found in how much work, and how it was compared."""
    found = sum(seen.times.values())
    told = f"{found:,} findings" if found else "no divergence"
    told = f"interrupted; {told}" if seen.interrupted else told
    judged = ", every rule judged" if plan.terms.judged else ""
    rate = seen.steps / max(seconds, 1e-9)
    return (
        f"{plan.subject.name}: {told} in {seen.episodes:,} episodes, {seen.steps:,} steps compared "
        f"({plan.terms.strictness}{_left_out(plan)}{judged}, seed {plan.seed}; "
        f"{seconds:.1f} s, {rate:,.0f} steps/s)"
    )


def _left_out(plan: Plan) -> str:
    names = sorted(plan.subject.leaves_out)
    return f" without {', '.join(names)}" if names else ""


def _report(
    plan: Plan,
    seen: Campaign,
    findings: Sequence[Shrunk],
    paths: Sequence[Path],
    seconds: float,
) -> dict[str, Any]:
    return {
        "target": plan.subject.name,
        "seed": plan.seed,
        "strictness": plan.terms.strictness.value,
        "left_out": sorted(plan.subject.leaves_out),
        "judged": plan.terms.judged,
        "set": dict(plan.pinned),
        "episodes": seen.episodes,
        "steps": seen.steps,
        "interrupted": seen.interrupted,
        "actions": dict(sorted(seen.counts.items())),
        "never": seen.never,
        "known": dict(sorted(seen.known.items())),
        "findings": [
            {
                "kind": one.finding.kind.value,
                "cause": one.finding.cause,
                "rule": one.finding.rule,
                "step": one.finding.step,
                "episode": met.episode,
                "times": seen.times[met.finding.signature],
                "file": str(path),
                **one.case.as_mapping(),
            }
            for met, one, path in zip(seen.met.values(), findings, paths, strict=True)
        ],
        "seconds": round(seconds, 3),
        "steps_per_second": round(seen.steps / max(seconds, 1e-9)),
    }
