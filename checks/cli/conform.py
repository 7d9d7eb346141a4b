"""`lockstep conform`: a released scheduler and the reference, step by step."""

from pathlib import Path

import click
from attrs import evolve
from rich.console import Console

from checks.cli.campaigns import campaign_report, print_campaign, run_campaign
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
    write_json,
)
from checks.export.files import new_file
from checks.harness.campaign import Campaign, Plan, own_system
from checks.harness.case import Case
from checks.harness.comparing import Strictness
from checks.harness.comparison import Terms, compare
from checks.harness.driver.client import Driver
from checks.harness.driver.system import DriverCommand, DriverSystem
from checks.harness.finding import Episode
from checks.harness.recording import (
    Recording,
    fitted,
    outcome_as_json,
    read_recording,
)
from checks.harness.report import print_finding
from checks.harness.system import Hello, Json, System
from checks.releases.environments import command_of
from checks.releases.filing import filed_findings, filed_known, filed_rules
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
    if case_path is not None:
        recording = read_recording(case_path)
        return _again(console(json_path), driver, recording, recorded, json_path)
    return conform_driver(
        driver,
        seconds,
        episodes,
        seed,
        Terms(Strictness(strictness)),
        settings,
        findings,
        recorded_verdicts=recorded_verdicts,
        report=report,
        json_path=json_path,
    )


def conform_driver(
    driver: str,
    seconds: float | None,
    episodes: int | None,
    seed: int,
    terms: Terms,
    settings: tuple[str, ...],
    findings: Path,
    *,
    recorded_verdicts: bool = False,
    report: Path | None = None,
    json_path: Path | None = None,
) -> int:
    """A campaign with a driver, whose steps are judged in any case; the command's exit code.

    Raises:
        InputError: there is no such driver, or it is not installed.
        DriverError: it cannot be started, or does not speak the protocol.
    """
    source = DriverCommand(tuple(command_of(driver)))
    system = own_system(source)
    pinned = pinned_keys(settings, system.hello.policy)
    plan = Plan(source, seed, evolve(terms, judged=True), pinned)
    plan.case(0)  # what cannot be drawn is refused before anything runs
    seen, took = run_campaign(plan, seconds or CAMPAIGN_SECONDS, episodes)
    filed = list(filed_findings(system, plan, driver, seen, findings))
    if report is not None:
        known = [
            *filed_known(system, plan, driver, seen, findings),
            *filed_rules(system, plan, driver, seen, findings),
        ]
        with new_file(report) as file:
            lines = page_lines(driver, plan, seen, filed, known)
            file.writelines(f"{line}\n" for line in lines)
    found = [
        (one.first, one.small, one.path, f"lockstep conform {driver} --case {one.path}")
        for one in filed
    ]
    print_campaign(console(json_path), plan, seen, found, took)
    report_fields = campaign_report(plan, seen, found, took)
    write_json(_campaign_fields(system.hello, seen) | report_fields, json_path)
    if seen.first_seen or seen.overdue:
        return _DIVERGES
    if recorded_verdicts:
        write_entry(plan, seen, CONFORMED)
    return 0 if seen.steps and not seen.interrupted else _INCOMPLETE


def _campaign_fields(hello: Hello, seen: Campaign) -> Json:
    """What the report of a driver says beside that of any campaign."""
    return {
        "driver": hello.name,
        "release": hello.release,
        "judged": seen.judged,
        "on_device": seen.on_device,
        "rules": sorted(seen.rules - set(seen.not_evaluated)),
        "not_judged": dict(sorted(seen.not_evaluated.items())),
        "known": dict(sorted(seen.known.items())),
        "missed": dict(sorted(seen.overdue.items())),
        "excused": dict(sorted(seen.expected.items())),
    }


def _again(
    screen: Console, driver: str, recording: Recording, recorded: bool, json_path: Path | None
) -> int:
    """The recorded case, with the driver or with what it reported."""
    if recorded:
        return _played_again(screen, recording, recording, json_path)
    command = command_of(driver)
    with DriverSystem(lambda: Driver(command)) as system:
        return _played_again(screen, system, recording, json_path)


def _played_again(
    screen: Console, system: System, recording: Recording, json_path: Path | None
) -> int:
    """The recorded case on a system, compared or judged alone as it was recorded."""
    case, terms = recording.case, recording.terms
    if terms.rules_only:
        case = fitted(system.hello, case)
    episode = compare(system, case, terms)
    (_print_judged if terms.rules_only else _print_compared)(screen, system.hello, case, episode)
    outcome = outcome_as_json(episode, terms)
    same = outcome == recording.outcome
    screen.print("as recorded" if same else f"recorded was: {recording.outcome}", soft_wrap=True)
    report = {"driver": system.hello.release, "outcome": outcome, "as_recorded": same}
    write_json(report, json_path)
    return _DIVERGES if episode.findings or not same else 0


def _print_judged(screen: Console, hello: Hello, _case: Case, episode: Episode) -> None:
    screen.print(f"{hello.release}, judged alone in {episode.steps:,} steps", soft_wrap=True)
    for one in episode.findings.values():
        found = f"{one.cause}: {one.broken[0][1]}" if one.broken else one.says
        screen.print(f"  {one.kind} in step {one.step}: {found}", markup=False, soft_wrap=True)


def _print_compared(screen: Console, hello: Hello, case: Case, episode: Episode) -> None:
    if episode.finding is not None:
        print_finding(screen, hello, case, episode.finding)
    elif episode.known is not None:
        screen.print(f"{episode.known} after {episode.steps:,} equal steps, as known")
    else:
        screen.print(f"{hello.release}: no difference in {episode.steps:,} steps")
