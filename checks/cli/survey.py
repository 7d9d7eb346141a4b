"""`lockstep survey`: the rules that each release of a scheduler breaks, with small cases."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from attrs import frozen

from checks.cli import exit_code
from checks.cli.campaigns import (
    Extent,
    campaign_cases,
    campaign_verdicts,
    extent_options,
    pinned_option,
)
from checks.cli.common import Output, directory_option, err, gathered, json_option, on_option
from checks.cli.envelope import Json, read_report
from checks.cli.expect import Expected
from checks.cli.outputs import NEW_FILE, PATH, Command
from checks.ending import deferred
from checks.export.files import new_file
from checks.harness.campaigns.campaign import Campaign, Source, own_system
from checks.harness.campaigns.recording import file_name, fitted, record
from checks.harness.comparison import Terms
from checks.harness.driver.system import DriverCommand
from checks.releases.bisecting import release_environments
from checks.releases.commits import Commit
from checks.releases.environments import Environment, command_of
from checks.releases.history import History, history_lines
from checks.releases.survey import Page, Small, Surveyed, chosen, page_lines, shown, small_cases
from engine.workloads.checked import brief
from spec.core.errors import InputError


@frozen
class Span:
    """The surveyed releases or commits."""

    span: str | None
    commits: tuple[Path, str] | None
    touching: tuple[str, ...]


@click.command(cls=Command)
@click.argument("driver")
@gathered(
    "surveyed",
    Span,
    click.option("--versions", "span", metavar="FIRST..LAST", help="Which releases."),
    click.option(
        "--git",
        "commits",
        type=(PATH, str),
        metavar="PATH FIRST..LAST",
        help="Commits of the repository at PATH instead; DRIVER may be a file in it.",
    ),
    click.option(
        "--touching",
        multiple=True,
        metavar="GLOB",
        help="With --git: only commits that change such a file.",
    ),
)
@extent_options("Begin no case after S seconds, with each release.", "cases")
@pinned_option
@click.option(
    "--expect",
    type=PATH,
    metavar="REPORT",
    help="Exit code 0 if every verdict is as in this report; else 1.",
)
@on_option("cases")
@directory_option("--findings", default="findings", what="the small cases")
@click.option("--report", type=NEW_FILE, help="Write the page there; Markdown.")
@json_option
def survey(
    driver: str,
    surveyed: Span,
    extent: Extent,
    expect: Path | None,
    findings: Path,
    report: Path | None,
    output: Output,
) -> int:
    """Serve the same random cases with each installed release of DRIVER, judged alone.

    Nothing is compared: every rule, the simulated device and the release's own counts judge its
    steps. What is broken is made small, and every small case is run on every release. Exit code 1:
    something is broken; 3: nothing is, and a release is not installed. With --resume each release
    has a file of its own, its version behind the name.

    With --git each commit is judged in the environment of DRIVER, which imports from the commit's
    files first. A table says what each breaks; nothing is made small: `lockstep bisect --git` finds
    where a recorded case changes. Exit code 3: a commit cannot be driven, and no other breaks
    anything.
    """
    span, commits, touching = surveyed.span, surveyed.commits, surveyed.touching
    if (span is None) == (commits is None):
        raise InputError("--versions", span, "one of --versions and --git")
    if commits is not None:
        if expect is not None:
            raise InputError("--expect", str(expect), "only with --versions")
        history = History(*commits, driver, touching)
        return _of_commits(history, extent, report, output)
    if touching:
        raise InputError("--touching", touching[0], "only with --git")
    span = span or ""
    environments = release_environments(driver, span)
    there = [environment for environment in environments if environment.is_complete]
    if not there:
        missing = environments[-1].recipe
        raise InputError(
            "--versions", span, f"installed releases: lockstep driver install {missing.driver}"
        )
    about: Json = {
        "driver": driver,
        "seed": extent.seed,
        "episodes": extent.episodes,
        "set": list(extent.settings),
    }
    expected = None if expect is None else _expected(expect, about)
    with deferred():
        page = _page(driver, span, there, extent, findings)
    _print_page(page_lines(page), report, output)
    for environment in environments:
        if environment not in there:
            err.print(f"not installed: {environment.recipe.name}")
    code = exit_code(violated=page.causes, incomplete=len(there) < len(environments))
    verdicts = {
        f"{release.seen.hello.release}: {name}": verdict
        for release in page.releases
        for name, verdict in campaign_verdicts(release.seen).items()
    }
    content = about | {"verdicts": verdicts, "releases": _as_mapping(page)}
    cases = [case for release in page.releases for case in campaign_cases(release.seen)]
    if expected is None:
        return output.end(code, content, cases)
    is_whole = not any(release.seen.interrupted for release in page.releases)
    releases = {release.seen.hello.release for release in page.releases}
    compared = expected.compared(
        verdicts, lambda name: is_whole and name.partition(": ")[0] in releases
    )
    return compared.end(output, content, cases)


def _print_page(lines: Iterable[str], report: Path | None, output: Output) -> None:
    """Print the page, and write it into the file if one is named."""
    text = "\n".join(lines).rstrip() + "\n"
    if report is not None:
        with new_file(report) as file:
            file.write(text)
    click.echo(text, nl=False, err=output.to_stdout)


def _of_commits(history: History, extent: Extent, report: Path | None, output: Output) -> int:
    """Survey the commits of a history with the same random cases."""

    def run(commit: Commit, source: Source) -> Campaign:
        return extent.of_release(commit.id).run(extent.plan(source, Terms(rules_only=True)))

    with deferred():
        judged = list(history.judged(run))
    _print_page(history_lines(history, extent.seed, judged), report, output)
    campaigns = {entry.commit.id: entry.seen for entry in judged if entry.seen is not None}
    code = exit_code(
        violated=any(seen.times for seen in campaigns.values()),
        incomplete=len(campaigns) < len(judged),
    )
    content: Json = {
        "driver": history.driver,
        "seed": extent.seed,
        "episodes": extent.episodes,
        "set": list(extent.settings),
        "verdicts": {
            f"{commit}: {name}": verdict
            for commit, seen in campaigns.items()
            for name, verdict in campaign_verdicts(seen).items()
        },
        "releases": {commit: _seen_as_mapping(seen) for commit, seen in campaigns.items()},
    }
    return output.end(code, content, [])


def _expected(path: Path, about: Json) -> Expected:
    """The verdicts of a report on the same cases."""
    there = read_report(path, "survey")
    for key, value in about.items():
        if there.get(key) != value:
            allowed = f"{brief(there.get(key))}, as there; other cases are not comparable"
            raise InputError(f"--expect {path}, {key}", value, allowed)
    return Expected(str(path), there["verdicts"])


def _page(driver: str, span: str, there: list[Environment], extent: Extent, findings: Path) -> Page:
    """Run random cases on each release and every small case on all of them; write small cases."""
    terms, sources = (
        Terms(rules_only=True),
        [command_of(environment.recipe.name) for environment in there],
    )
    plans = [extent.plan(DriverCommand(argv, extent.start_seconds), terms) for argv in sources]
    campaigns = [
        extent.of_release(environment.recipe.version).run(plan)
        for environment, plan in zip(there, plans, strict=True)
    ]
    cases = [small for seen in campaigns for small in small_cases(seen)]
    releases = [
        Surveyed(environment.recipe.version, seen, shown(own_system(seen.plan.system), cases))
        for environment, seen in zip(there, campaigns, strict=True)
    ]
    paths = {
        number: _recorded(releases, cases[number], number, findings)
        for number in chosen(cases, [release.shown for release in releases])
    }
    return Page(driver, span, releases, cases, paths)


def _recorded(releases: list[Surveyed], small: Small, number: int, findings: Path) -> Path:
    """Write a small case with the records of the first release that shows its finding."""
    first = next(release for release in releases if number in release.shown)
    finding, system = first.shown[number], own_system(first.seen.plan.system)
    name = system.hello.name
    path = findings / file_name(name, small.case, finding)
    findings.mkdir(parents=True, exist_ok=True)
    case = fitted(system.hello, small.case)
    command = f"lockstep conform {name}=={first.version} --case {path.name}"
    record(system, case, small.terms, path, about=finding.says, command=command)
    return path


def _as_mapping(page: Page) -> dict[str, Any]:
    return {
        release.version: _seen_as_mapping(release.seen)
        | {
            "small": {
                str(path): release.shown[number].step
                for number, path in page.paths.items()
                if number in release.shown
            },
        }
        for release in page.releases
    }


def _seen_as_mapping(seen: Campaign) -> Json:
    """The counts and findings of a campaign, without small cases."""
    return {
        "release": seen.hello.release,
        "episodes": seen.episodes,
        "steps": seen.steps,
        "on_device": seen.on_device,
        "broken": [
            {"kind": kind, "cause": what, "episodes": seen.times[kind, what]}
            for kind, what in sorted(seen.times)
        ],
        "small": {},
    }
