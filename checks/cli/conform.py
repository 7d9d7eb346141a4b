"""`lockstep conform`: a released scheduler and the reference, step by step."""

import shlex
from contextlib import closing, nullcontext
from math import inf
from pathlib import Path
from time import monotonic

import click
from attrs import evolve, frozen
from rich.console import Console

from checks.cli import exit_code
from checks.cli.campaigns import (
    Extent,
    campaign_expected,
    campaign_report,
    end_campaign,
    extent_options,
    pinned_option,
    print_campaign,
    print_commands,
    shrinking,
    strictness_option,
    system_of_command,
)
from checks.cli.ci import Case as CiCase
from checks.cli.ci import status_of
from checks.cli.common import (
    Output,
    directory_option,
    gathered,
    json_option,
    on_option,
    print_lines,
)
from checks.cli.expect import RECORDED, expect_option
from checks.cli.one_case import OneCase, one_case_options, watch
from checks.cli.outputs import NEW_FILE, PATH, Command
from checks.cli.worlds import (
    EVERY_EDGE,
    Asked,
    extent_after,
    run_worlds,
    worlds_expected,
    worlds_lines,
    worlds_options,
    worlds_report,
    worlds_verdict,
)
from checks.ending import deferred, ended
from checks.evidence import CONFORMED, recorded, write_entry, write_worlds
from checks.export.files import new_file
from checks.export.outside import placed
from checks.export.printable import printable
from checks.harness.campaigns.campaign import Campaign, Given, Plan, own_system
from checks.harness.campaigns.recording import (
    Recording,
    finding_as_json,
    outcome_as_json,
    outcome_in_words,
    read_recording,
    refuse_impossible,
)
from checks.harness.campaigns.report import (
    bounds_lines,
    expected_lines,
    finding_lines,
    print_finding,
)
from checks.harness.campaigns.worlds import Coverage
from checks.harness.case import Case
from checks.harness.choices import Choices
from checks.harness.comparing import Strictness
from checks.harness.comparison import Terms, compare
from checks.harness.driver.system import DriverCommand
from checks.harness.finding import Episode
from checks.harness.paths import choices_of_path
from checks.harness.standalone import with_own_steps
from checks.harness.system import Hello, Json, System
from checks.releases.bisecting import run_case
from checks.releases.commits import tree_imports
from checks.releases.environments import command_of
from checks.releases.filing import filed_findings, filed_known, filed_rules
from checks.releases.recipes import RECIPES, recipe_of
from checks.releases.report_page import page_lines
from checks.words import counted
from engine.workloads.checked import brief
from spec.core.errors import InputError


@frozen
class Filing:
    """Where findings are kept, and what else is written about a campaign."""

    findings: Path
    record: bool = False
    report: Path | None = None


@click.command(cls=Command)
@worlds_options()
@extent_options()
@strictness_option
@pinned_option
@one_case_options()
@click.option(
    "--source",
    type=PATH,
    help="A working tree: what the driver imports is looked up there first.",
)
@on_option("episodes")
@expect_option
@gathered(
    "filing",
    Filing,
    directory_option("--findings", default="findings"),
    click.option("--record", is_flag=True, help="Renew the verdicts kept with the project."),
    click.option(
        "--report", type=NEW_FILE, help="File everything that is met, on a page; Markdown."
    ),
)
@json_option
def conform(
    asked: Asked,
    extent: Extent,
    strictness: str,
    one_case: OneCase,
    source: Path | None,
    expect: str | None,
    filing: Filing,
    output: Output,
) -> int:
    """Serve worlds and random cases with a released scheduler and the reference.

    A world is a small instance; the driver takes every edge of the reference's graph of it, each
    arrival, abort and end in every state. Then random cases follow. With --time the worlds get a
    third of it at most, with --episodes they are left out, with --exhaustive there is nothing else.
    Every step is compared, and every rule judges the driver's own steps. DRIVER is the
    name of an installed release (sendnn, sendnn==2.6.3), `template`, or the path of a driver's
    file. A difference that is not known is made as small as it can be and recorded, with the
    command that runs it again. With --workload exactly these requests are served instead, and a
    difference is recorded as it is. With --source a release is tried with the Python files of a
    checkout instead of its own: nothing is installed, and the vLLM is the release's unless `driver
    install` was given the same --source. Exit code 1: an unknown difference, a broken rule, a
    crash, or a known difference that did not show where it was due. With --case 0: none of these
    any more; with --expect recorded, too, 0: all is as in the file.
    """
    driver, case_path = asked.driver, one_case.path
    one_case.refuse(
        {
            "--exhaustive": asked.exhaustive,
            "--time": extent.seconds,
            "--episodes": extent.episodes,
            "--resume": extent.resume,
            "--expect": expect,
            "--record": filing.record,
            "--report": filing.report,
        }
    )
    for option, other in {"--episodes": extent.episodes, "--case": case_path}.items():
        if asked.exhaustive and other is not None:
            raise InputError("--exhaustive", True, f"not together with {option}")
    if source is not None:
        if not source.is_dir():
            raise InputError("--source", str(source), "a directory")
        click.get_current_context().with_resource(tree_imports(source.absolute()))
    if case_path is None and one_case.workload is None:
        return conform_driver(
            driver,
            extent,
            Terms(Strictness(strictness)),
            filing,
            output,
            expect=expect,
            checkout=source,
            asked=asked,
        )
    recording = None if case_path is None else read_recording(case_path)
    if recording is not None and expect not in (None, RECORDED):
        raise InputError("--expect", expect, f"{RECORDED}, together with --case")
    if recording is not None and one_case.recorded:
        return _again(recording, recording, expect, output)[0]
    start = DriverCommand(command_of(driver, source), extent.start_seconds)
    again = driver if source is None else f"{driver} --source {shlex.quote(str(source))}"
    if recording is not None and one_case.shrink:
        return _smaller(start, recording, extent, again, filing.findings, output)

    def serve() -> tuple[int, str]:
        with closing(start.open()) as system:
            if recording is not None:
                return _again(system, recording, expect, output)
            case = one_case.own(extent.settings, system.hello)
            terms = Terms(Strictness(strictness))
            refuse_impossible(system.hello, case, terms, one_case.place)
            return _own_requests(system, case, terms, again, filing.findings, output)

    if not one_case.watch:
        return serve()[0]
    return watch(serve, one_case.sources(driver, source), output.screen)


def conform_driver(
    driver: str,
    extent: Extent,
    terms: Terms,
    filing: Filing,
    output: Output,
    *,
    expect: str | None = None,
    checkout: Path | None = None,
    asked: Asked | None = None,
) -> int:
    """Worlds and a campaign with a driver, whose steps are judged; the command's exit code.

    `asked`: which worlds; None: the campaign alone, as with a number of episodes.

    Raises:
        InputError: there is no such driver, it is not installed, or it can do no such world.
        DriverError: it cannot be started, or does not speak the protocol.
    """
    start = command_of(driver, checkout)
    name, _, version = driver.partition("==")
    if filing.record and not (extent.episodes or (asked is not None and asked.exhaustive)):
        raise InputError("--record", True, "together with --episodes or --exhaustive")
    if filing.record and recipe_of(name, version or None) is None:
        raise InputError(
            "--record", driver, f"a release: {', '.join(recipe.name for recipe in RECIPES)}"
        )
    plan = extent.plan(DriverCommand(start, extent.start_seconds), evolve(terms, judged=True))
    command = click.get_current_context().info_name or "conform"
    worlds = None if asked is None or extent.episodes else asked.plan(plan)
    exhaustive = asked is not None and asked.exhaustive
    release = own_system(plan.system).hello.release
    if filing.record and exhaustive and release not in recorded(CONFORMED):
        allowed = "a release whose campaign is on record: --episodes N --record comes first"
        raise InputError("--record", release, allowed)
    expected = None
    if expect is not None:
        expected = (
            worlds_expected(expect, worlds)
            if worlds is not None and exhaustive
            else campaign_expected(expect, command, extent, plan)
        )
    again = driver if checkout is None else f"{driver} --source {shlex.quote(str(checkout))}"
    coverage = None
    with deferred():
        if worlds is not None and worlds.worlds:
            coverage = run_worlds(worlds, extent, exhaustive=exhaustive)
        seen = _whole_run(plan, extent, coverage, exhaustive=exhaustive)
        where = seen, again, filing.findings
        with shrinking(seen) as budget:
            found = list(filed_findings(*where, budget))
        if filing.report is not None:
            known = [*filed_known(*where), *filed_rules(*where)]
            with new_file(filing.report) as file:
                file.writelines(f"{printable(line)}\n" for line in page_lines(seen, found, known))
    print_campaign(output.screen, seen, found)
    diverges = seen.first_seen or seen.overdue
    content = _campaign_fields(seen) | campaign_report(seen, found)
    if coverage is not None:
        print_lines(output.screen, *worlds_lines(coverage))
        content["worlds"] = worlds_report(coverage)
        content["verdicts"][EVERY_EDGE] = worlds_verdict(coverage)
    if filing.record:
        is_whole = not diverges and not seen.interrupted
        _record(seen, coverage if exhaustive else None, output.screen, is_whole=is_whole)
    code = exit_code(violated=diverges, incomplete=seen.interrupted or not seen.steps)
    return end_campaign(seen, found, output, content, code, expected, driver)


def _whole_run(
    plan: Plan, extent: Extent, coverage: Coverage | None, *, exhaustive: bool
) -> Campaign:
    """The outcomes of the worlds and of the campaign after them, as one."""
    if coverage is None:
        return extent.run(plan)
    worlds = coverage.campaign
    if exhaustive:
        return worlds
    seen = Campaign(plan)
    seen.add(worlds)
    if ended() is None and not worlds.has_found_enough:
        after = extent_after(extent, coverage).run(plan)
        seen.add(after)
        seen.first_seen |= worlds.first_seen  # which were seen before any episode
        seen.examples |= worlds.examples
        seen.until, seen.interrupted = after.until, after.interrupted
        seen.seconds, seen.start_seconds = after.seconds, after.start_seconds
    else:
        seen.interrupted = ended() is not None
    seen.seconds += worlds.seconds
    seen.start_seconds += worlds.start_seconds
    return seen


def _record(seen: Campaign, coverage: Coverage | None, screen: Console, *, is_whole: bool) -> None:
    if is_whole and coverage is not None:
        write_worlds(coverage, CONFORMED)
    elif is_whole:
        write_entry(seen, CONFORMED)
    screen.print(f"recorded: {CONFORMED.name}" if is_whole else "not recorded: see above")


def _campaign_fields(seen: Campaign) -> Json:
    """The report fields of a driver's campaign besides those of any campaign."""
    return {
        "driver": seen.hello.name,
        "judged": seen.judged,
        "on_device": seen.on_device,
        "rules": seen.judged_rules,
        "not_judged": dict(sorted(seen.not_evaluated.items())),
        "known": dict(sorted(seen.known.items())),
        "missed": dict(sorted(seen.overdue.items())),
        "excused": dict(sorted(seen.expected.items())),
    }


def _smaller(
    source: DriverCommand,
    recording: Recording,
    extent: Extent,
    driver: str,
    findings: Path,
    output: Output,
) -> int:
    """The recorded case made smaller on a system, in a file of its own."""
    system, case, terms = system_of_command(source), recording.case, recording.terms
    plan = Plan(source, 0, terms, {key: getattr(case.config, key) for key in recording.pinned})
    with placed(recording.path, 1):
        if case.path:
            case = evolve(case, choices=choices_of_path(case.path))
        if not case.choices or plan.redrawn(case, Choices.again(case.choices)) != case:
            allowed = "the draws of its case, as this version of `lockstep conform` writes them"
            raise InputError("choices", brief(case.choices), allowed)
    seen = Campaign.of(plan, 0, case, terms, run_again(system, recording))
    seen.until = inf if extent.seconds is None else monotonic() + extent.seconds
    with deferred(), shrinking(seen) as budget:
        found = [*filed_findings(seen, driver, findings, budget)]
    for entry in found:
        print_finding(output.screen, seen.hello, entry.case, entry.finding)
        print_commands(output.screen, entry)
    if not found:
        print_lines(output.screen, f"{seen.hello.release}: nothing is found in this case any more")
    outcome: Json = {"steps": seen.steps, "known": None, "finding": None}
    if found:
        finding = found[0].finding
        outcome |= {"steps": finding.step, "finding": finding_as_json(finding)}
    report = {"driver": seen.hello.release, "found": outcome, "as_recorded": bool(found)}
    return output.end(exit_code(violated=found), report, [])


def _own_requests(
    system: System, case: Case, terms: Terms, driver: str, findings: Path, output: Output
) -> tuple[int, str]:
    """Serve requests of one's own, compared and judged: the exit code, and the verdict in words."""
    began, screen = monotonic(), output.screen
    episode = compare(system, case, terms)
    seen = Campaign.of(Plan(Given(system), terms=terms), 0, case, terms, episode)
    seen.seconds = monotonic() - began
    found = [*filed_findings(seen, driver, findings)]
    for entry in found:
        print_finding(screen, system.hello, entry.case, entry.finding)
        print_lines(screen, f"  again: {entry.again}", f"  look at it: lockstep view {entry.path}")
    verdict = outcome_in_words(outcome_as_json(episode, terms))
    if seen.expected:
        verdict += f", broken as known: {', '.join(sorted(seen.expected))}"
    requests = counted(len(case.requests), "request")
    rules = counted(len(seen.judged_rules), "rule")
    print_lines(screen, *bounds_lines(seen), *expected_lines(seen, case.config))
    print_lines(screen, f"{system.hello.release}: {verdict}; {requests}, {rules} judged")
    report = _campaign_fields(seen) | campaign_report(seen, found)
    code = exit_code(violated=seen.first_seen or seen.overdue)
    return end_campaign(seen, found, output, report, code, None, driver), verdict


def _again(
    system: System, recording: Recording, expect: str | None, output: Output
) -> tuple[int, str]:
    """Run the recorded case, compared or judged alone as recorded: exit code, verdict in words."""
    terms, case = recording.terms, recording.case
    episode = run_again(system, recording)
    print_again(output.screen, system.hello, recording, episode)
    outcome = outcome_as_json(episode, terms)
    same, finding = outcome == recording.outcome, episode.finding
    report = {"driver": system.hello.release, "found": outcome, "as_recorded": same}
    code = exit_code(violated=not same if expect else episode.findings)
    title, *details = ("",) if finding is None else finding_lines(system.hello.name, case, finding)
    ci_case = CiCase(
        suite=system.hello.release,
        name=recording.path.name,
        status=status_of(violated=code),
        found="" if finding else outcome_in_words(outcome),
        title=title,
        details=tuple(details),
        file=str(recording.path),
    )
    return output.end(code, report, [ci_case]), outcome_in_words(outcome)


def run_again(system: System, recording: Recording) -> Episode:
    """Run a recorded case again; a divergence has the driver's own run.

    Raises:
        DriverError: the system's hello says that it cannot do the case, or the driver is in error.
    """
    case, terms = recording.case, recording.terms
    refuse_impossible(system.hello, case, terms, recording.path)
    with placed(recording.path) if system is recording else nullcontext():
        episode = run_case(system, case, terms)
    if episode.finding is not None:
        known = recording.own_steps if system is recording else None
        found = with_own_steps(system, case, terms, episode.finding, known)
        episode.findings[found.signature] = found
    return episode


def print_again(screen: Console, hello: Hello, recording: Recording, episode: Episode) -> None:
    """Print the outcome of a repeated recorded case, and whether it is as recorded."""
    if recording.terms.rules_only:
        _print_judged(screen, hello, episode)
    else:
        _print_compared(screen, hello, recording.case, episode)
    if episode.finding is not None:
        print_lines(screen, f"  look at it: lockstep view {recording.path}")
    same = outcome_as_json(episode, recording.terms) == recording.outcome
    was = f"the file says: {outcome_in_words(recording.outcome)}"
    print_lines(screen, "as recorded" if same else was)


def _print_judged(screen: Console, hello: Hello, episode: Episode) -> None:
    screen.print(f"{hello.release}, judged alone in {counted(episode.steps, 'step')}")
    for finding in episode.findings.values():
        cause, broken = finding.cause, finding.broken
        found = f"{cause}: {broken[0][1]}" if broken else finding.says
        print_lines(screen, f"  {finding.kind} in step {finding.step}: {found}")


def _print_compared(screen: Console, hello: Hello, case: Case, episode: Episode) -> None:
    if episode.finding is not None:
        print_finding(screen, hello, case, episode.finding)
    elif episode.known is not None:
        screen.print(f"{episode.known} after {counted(episode.steps, 'equal step')}, as known")
    else:
        screen.print(f"{hello.release}: no difference in {counted(episode.steps, 'step')}")
