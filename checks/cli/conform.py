"""`lockstep conform`: a released scheduler and the reference, step by step."""

from collections.abc import Iterable
from pathlib import Path
from time import monotonic
from typing import Any

import click
from rich.console import Console

from checks.cli.common import (
    CAMPAIGN_SECONDS,
    NEW_DIRECTORY,
    NEW_FILE,
    PATH,
    campaign_options,
    console,
    json_option,
    pinned_keys,
    pinned_option,
    progress_bar,
    write_json,
)
from checks.conformance.campaign import Campaign, Plan, TimedEpisodes, campaign
from checks.conformance.episode import Outcome, Terms, run_episode
from checks.conformance.recording import (
    Recording,
    judged_again,
    judged_as_json,
    judged_on,
    outcome_as_json,
    read_recording,
    recorded_again,
)
from checks.conformance.report import (
    bounds_lines,
    counts_table,
    known_lines,
    print_finding,
    verdict,
)
from checks.export.files import new_file
from checks.fuzz.cases import Case
from checks.fuzz.compare import Strictness
from checks.harness.driver.client import Driver
from checks.harness.driver.lab import DriverLab
from checks.harness.driver.protocol import Hello
from checks.releases.environments import command_of
from checks.releases.filing import Filed, filed_findings, filed_known, filed_rules
from checks.releases.report_page import page_lines
from checks.releases.verdicts import CONFORMED, write_entry
from spec.core.errors import InputError

_DIVERGES, _INCOMPLETE = 1, 3


@click.command()
@click.argument("driver")
@campaign_options
@pinned_option
@click.option("--case", "case_path", type=PATH, help="Run this recorded case again instead.")
@click.option("--recorded", is_flag=True, help="With --case: as recorded, without the driver.")
@click.option(
    "--findings",
    type=NEW_DIRECTORY,
    default=Path("findings"),
    show_default=True,
    help="Directory for findings.",
)
@click.option(
    "--record", "recorded_verdicts", is_flag=True, help="Renew the verdicts kept with the project."
)
@click.option("--report", type=NEW_FILE, help="File everything that is met, on a page; Markdown.")
@json_option
def conform(
    driver: str,
    seconds: float | None,
    episodes: int | None,
    seed: int,
    strictness: str,
    settings: tuple[str, ...],
    case_path: Path | None,
    recorded: bool,
    findings: Path,
    recorded_verdicts: bool,
    report: Path | None,
    json_path: Path | None,
) -> int:
    """Serve random cases with the DRIVER of a released scheduler and with the reference.

    Every step is compared, and every rule is held against the driver's own steps. DRIVER is the
    name of an installed release (sendnn, sendnn==2.6.3), `template`, or the path of a driver's
    file. A difference that is not known is made as small as it can be and recorded, with the
    command that runs it again. Exit code 1: an unknown difference, a broken rule, a crash, or a
    known difference that did not show where it was due.
    """
    if seconds is not None and episodes is not None:
        raise InputError("--time", seconds, "not together with --episodes")
    if recorded and case_path is None:
        raise InputError("--recorded", True, "together with --case")
    screen = console(json_path)
    if case_path is not None:
        return _again(screen, driver, read_recording(case_path), recorded, json_path)
    command = command_of(driver)
    with DriverLab(lambda: Driver(command)) as lab:
        terms = Terms(Strictness(strictness))
        plan = Plan(command, lab.hello, seed, terms, pinned_keys(settings, lab.hello.policy))
        plan.case(0)  # what cannot be drawn is refused before anything runs
        began = monotonic()
        seen = _run(plan, seconds or CAMPAIGN_SECONDS, episodes)
        took = monotonic() - began
        filed = filed_findings(lab, driver, seen, findings)
        if report is not None:
            known = [
                *filed_known(lab, driver, seen, findings),
                *filed_rules(lab, driver, seen, findings),
            ]
            _write_page(report, page_lines(driver, plan, seen, filed, known))
    _tell(screen, driver, plan, seen, filed, took)
    write_json(_report(plan, seen, filed, took), json_path)
    if seen.met or seen.missed:
        return _DIVERGES
    if recorded_verdicts:
        write_entry(plan, seen, CONFORMED)
    return 0 if seen.steps else _INCOMPLETE


def _run(plan: Plan, seconds: float, episodes: int | None) -> Campaign:
    """The campaign, with a bar of episodes or seconds."""
    timed = TimedEpisodes(seconds)
    total = round(seconds) if episodes is None else episodes
    with progress_bar("seconds" if episodes is None else "episodes", total) as show:

        def progress(seen: Campaign) -> None:
            done = round(timed.passed_seconds) if episodes is None else seen.episodes
            found = sum(seen.times.values())
            show(done, f"{seen.episodes:,} episodes, {seen.steps:,} steps, {found} found")

        return campaign(plan, timed if episodes is None else range(episodes), progress)


def _write_page(path: Path, lines: Iterable[str]) -> None:
    with new_file(path) as file:
        file.writelines(f"{line}\n" for line in lines)


def _tell(
    screen: Console, driver: str, plan: Plan, seen: Campaign, filed: list[Filed], seconds: float
) -> None:
    screen.print(counts_table(seen.counts))
    for line in (*bounds_lines(plan.hello, seen), *known_lines(plan.hello, seen)):
        screen.print(line, markup=False, soft_wrap=True)
    for one in filed:
        screen.print()
        print_finding(screen, plan.hello, one.small.case, one.small.finding)
        where = f"met {one.times:,} times, first in episode {one.met.episode} of seed {plan.seed}"
        how = f"shrunk in {one.small.runs:,} runs, {one.small.steps:,} steps"
        screen.print(f"  {where}; {how}", soft_wrap=True)
        screen.print(f"  again: lockstep conform {driver} --case {one.path}", soft_wrap=True)
    screen.print()
    told = f"{plan.terms.strictness.value}, seed {plan.seed}"
    screen.print(verdict(plan.hello, seen, told, seconds), markup=False, soft_wrap=True)


def _again(
    screen: Console, driver: str, recording: Recording, recorded: bool, json_path: Path | None
) -> int:
    """The recorded case, with the driver or with what it told."""
    if recording.alone:
        return _again_alone(screen, driver, recording, recorded, json_path)
    if recorded:
        hello, outcome = recording.hello, recorded_again(recording)
    else:
        command = command_of(driver)
        with DriverLab(lambda: Driver(command)) as lab:
            hello, outcome = lab.hello, run_episode(lab, recording.case, recording.terms)
    _tell_again(screen, hello, recording.case, outcome)
    told = outcome_as_json(outcome)
    same = told == recording.outcome
    screen.print("as recorded" if same else f"recorded was: {recording.outcome}", soft_wrap=True)
    write_json({"driver": hello.release, "outcome": told, "as_recorded": same}, json_path)
    return _DIVERGES if outcome.finding is not None or not same else 0


def _again_alone(
    screen: Console, driver: str, recording: Recording, recorded: bool, json_path: Path | None
) -> int:
    """The same for a case that is judged alone."""
    if recorded:
        hello, judged = recording.hello, judged_again(recording)
    else:
        command = command_of(driver)
        with DriverLab(lambda: Driver(command)) as lab:
            hello, judged = lab.hello, judged_on(lab, recording)
    screen.print(f"{hello.release}, judged alone in {judged.steps:,} steps", soft_wrap=True)
    for one in judged.findings.values():
        found = f"{one.cause}: {one.rules[0][1]}" if one.rules else one.says
        screen.print(f"  {one.kind} in step {one.step}: {found}", markup=False, soft_wrap=True)
    told = judged_as_json(judged)
    same = told == recording.outcome
    screen.print("as recorded" if same else f"recorded was: {recording.outcome}", soft_wrap=True)
    write_json({"driver": hello.release, "outcome": told, "as_recorded": same}, json_path)
    return _DIVERGES if judged.findings or not same else 0


def _tell_again(screen: Console, hello: Hello, case: Case, outcome: Outcome) -> None:
    if outcome.finding is not None:
        print_finding(screen, hello, case, outcome.finding)
    elif outcome.known is not None:
        screen.print(f"{outcome.known} after {outcome.steps:,} equal steps, as known")
    else:
        screen.print(f"{hello.release}: no difference in {outcome.steps:,} steps")


def _report(plan: Plan, seen: Campaign, filed: list[Filed], seconds: float) -> dict[str, Any]:
    return {
        "driver": plan.hello.name,
        "release": plan.hello.release,
        "seed": plan.seed,
        "strictness": plan.terms.strictness.value,
        "left_out": sorted(plan.hello.left_out),
        "set": dict(plan.pinned),
        "episodes": seen.episodes,
        "steps": seen.steps,
        "judged": seen.judged,
        "on_device": seen.on_device,
        "rules": sorted(seen.rules - set(seen.untold)),
        "not_judged": dict(sorted(seen.untold.items())),
        "actions": dict(sorted(seen.counts.items())),
        "never": seen.never,
        "known": dict(sorted(seen.known.items())),
        "missed": dict(sorted(seen.missed.items())),
        "excused": dict(sorted(seen.excused.items())),
        "findings": [
            {
                "kind": one.small.finding.kind.value,
                "cause": one.small.finding.cause,
                "says": one.small.finding.says,
                "step": one.small.finding.step,
                "rules": [rule for rule, _ in one.small.finding.rules],
                "episode": one.met.episode,
                "times": one.times,
                "file": str(one.path),
            }
            for one in filed
        ],
        "seconds": round(seconds, 3),
    }
