"""`lockstep survey`: which release of a scheduler breaks which rule, and the cases that show it."""

from pathlib import Path
from typing import Any

import click

from checks.cli.campaigns import run_campaign
from checks.cli.common import (
    NEW_DIRECTORY,
    NEW_FILE,
    err,
    json_option,
    pinned_keys,
    to_stdout,
    write_json,
)
from checks.export.files import new_file
from checks.harness.campaign import Campaign, Plan, own_system
from checks.harness.comparison import Terms
from checks.harness.driver.system import DriverCommand
from checks.harness.recording import file_name, fitted, record
from checks.releases.bisecting import versions_of
from checks.releases.environments import Environment, command_of
from checks.releases.survey import (
    Small,
    chosen,
    shown,
    small_cases,
)
from checks.releases.survey_report import Page, Surveyed, page_lines
from spec.core.errors import InputError

_DEFAULT_SECONDS = 60.0
_BROKEN, _INCOMPLETE = 1, 3


@click.command()
@click.argument("driver")
@click.option("--versions", "span", required=True, metavar="FIRST..LAST", help="Which releases.")
@click.option(
    "--time",
    "seconds",
    type=click.FloatRange(0, min_open=True),
    help=f"Begin no case after S seconds, with each release.  [default: {_DEFAULT_SECONDS:g}]",
)
@click.option("--episodes", type=click.IntRange(1), help="Run so many cases instead.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Do not draw this key.")
@click.option(
    "--findings",
    type=NEW_DIRECTORY,
    default=Path("findings"),
    show_default=True,
    help="Directory for the small cases.",
)
@click.option("--report", type=NEW_FILE, help="Write the page there; Markdown.")
@json_option
def survey(
    driver: str,
    span: str,
    seconds: float | None,
    episodes: int | None,
    seed: int,
    settings: tuple[str, ...],
    findings: Path,
    report: Path | None,
    json_path: Path | None,
) -> int:
    """Serve the same random cases with each installed release of DRIVER, judged alone.

    Nothing is compared: every rule, the simulated device and the release's own counts judge its
    steps. What is broken is made small, and every small case is run on every release. Exit code 1:
    something is broken; 3: nothing is, and a release is not installed.
    """
    if seconds is not None and episodes is not None:
        raise InputError("--time", seconds, "not together with --episodes")
    environments = versions_of(driver, span)
    there = [one for one in environments if one.is_complete]
    if not there:
        missing = environments[-1].recipe
        raise InputError(
            "--versions", span, f"installed releases: lockstep driver install {missing.driver}"
        )
    plans = [_plan(one, seed, settings) for one in there]
    surveyed = [run_campaign(plan, seconds or _DEFAULT_SECONDS, episodes)[0] for plan in plans]
    cases = [
        small
        for plan, seen in zip(plans, surveyed, strict=True)
        for small in small_cases(plan, seen)
    ]
    page = _page(span, there, plans, surveyed, cases, findings)
    lines = "\n".join(page_lines(page, driver, seed)).rstrip() + "\n"
    if report is not None:
        with new_file(report) as file:
            file.write(lines)
    click.echo(lines, nl=False, err=to_stdout(json_path))
    for one in environments:
        if one not in there:
            err.print(f"not installed: {one.recipe.name}")
    write_json(_as_mapping(page), json_path)
    if page.causes:
        return _BROKEN
    return 0 if len(there) == len(environments) else _INCOMPLETE


def _plan(environment: Environment, seed: int, settings: tuple[str, ...]) -> Plan:
    """What is drawn for a release; what cannot be drawn is refused before anything runs."""
    source = DriverCommand(tuple(command_of(environment.recipe.name)))
    pinned = pinned_keys(settings, own_system(source).hello.policy)
    plan = Plan(source, seed, Terms(rules_only=True), pinned)
    plan.case(0)
    return plan


def _page(
    span: str,
    environments: list[Environment],
    plans: list[Plan],
    campaigns: list[Campaign],
    cases: list[Small],
    findings: Path,
) -> Page:
    """Every small case on every release, and the files of those that are told of."""
    surveyed = []
    for environment, plan, seen in zip(environments, plans, campaigns, strict=True):
        system = own_system(plan.system)
        found = shown(system, cases)
        release = system.hello.release
        surveyed.append(Surveyed(environment.recipe.version, release, seen, found))
    picked = chosen(cases, [one.shown for one in surveyed])
    paths = {}
    for number in picked:
        place = next(at for at, one in enumerate(surveyed) if number in one.shown)
        paths[number] = _recorded(plans[place], surveyed[place], cases[number], number, findings)
    return Page(span, surveyed, cases, picked, paths)


def _recorded(plan: Plan, first: Surveyed, small: Small, number: int, findings: Path) -> Path:
    """The case with the records of the first release that shows it."""
    finding, system = first.shown[number], own_system(plan.system)
    name = system.hello.name
    path = findings / file_name(name, small.case, finding)
    findings.mkdir(parents=True, exist_ok=True)
    case = fitted(system.hello, small.case)
    command = f"lockstep conform {name}=={first.version} --case {path.name}"
    record(system, case, small.terms, path, about=finding.says, command=command)
    return path


def _as_mapping(page: Page) -> dict[str, Any]:
    return {
        one.version: {
            "release": one.release,
            "episodes": one.seen.episodes,
            "steps": one.seen.steps,
            "on_device": one.seen.on_device,
            "broken": [
                {"kind": kind, "cause": what, "episodes": one.seen.times[kind, what]}
                for kind, what in sorted(one.seen.times)
            ],
            "small": {str(page.paths[n]): one.shown[n].step for n in page.picked if n in one.shown},
        }
        for one in page.releases
    }
