"""Campaigns of random cases for `fuzz` and `conform`: options, output, verdicts and reports."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import click
from attrs import evolve, frozen
from rich.console import Console

from checks.cli.ci import Case, status_of
from checks.cli.common import (
    SECONDS,
    Option,
    Output,
    gathered,
    pinned_keys,
    print_lines,
    progress_bar,
)
from checks.cli.envelope import Json, read_report
from checks.cli.expect import RECORDED, UNDECIDED, Expected, Verdicts
from checks.cli.outputs import KEPT_FILE
from checks.cores import is_elsewhere
from checks.evidence import CONFORMED, recorded
from checks.harness.campaigns.campaign import (
    Batches,
    Campaign,
    Found,
    Plan,
    Source,
    campaign,
    own_system,
)
from checks.harness.campaigns.report import (
    bounds_lines,
    counts_table,
    finding_lines,
    first_seen_line,
    known_lines,
    pairs_line,
    print_finding,
    print_wrapped,
    situations_lines,
    verdict,
)
from checks.harness.campaigns.resuming import read_campaign, save_campaign
from checks.harness.campaigns.shrinking import Budget
from checks.harness.campaigns.wording import reported
from checks.harness.comparing import Strictness, plain_json
from checks.harness.comparison import Terms
from checks.harness.driver.process import START_S
from checks.harness.system import System
from checks.registry import RULES
from checks.words import counted
from spec.core.errors import InputError

NO_DIFFERENCE = "no unknown difference"
KEPT_EVERY_SECONDS = 1.0
_SECONDS = 60.0  # unless --time or --episodes says otherwise


@frozen
class Extent:
    """The extent of a campaign: its time or number of episodes, its seed, its fixed keys.

    `settings`: `KEY=VALUE` for keys that are not drawn. `resume`: the checkpoint; the campaign
    continues from it if the file exists. `start_seconds`: the time that a driver may take to start;
    `seconds` counts from then on.

    Raises:
        InputError: both a time and a number are given.
    """

    seconds: float | None
    episodes: int | None
    seed: int
    settings: tuple[str, ...]
    resume: Path | None = None
    start_seconds: float = START_S

    def __attrs_post_init__(self) -> None:
        if self.seconds is not None and self.episodes is not None:
            raise InputError("--time", self.seconds, "not together with --episodes")

    def of_release(self, version: str) -> "Extent":
        """The extent for one of several releases, with its own checkpoint."""
        path = self.resume
        return self if path is None else evolve(self, resume=Path(f"{path}.{version}"))

    def plan(self, source: Source, terms: Terms, batch: int = 1) -> Plan:
        """The plan of a campaign with this system.

        Raises:
            ConfigError: no case can be drawn with the fixed keys.
            DriverError: the system cannot be started.
        """
        with progress_bar("starting", None):
            policy = system_of_command(source).hello.policy
        pinned = pinned_keys(self.settings, policy)
        plan = Plan(source, self.seed, terms, pinned, batch)
        plan.case(0)  # raises before any work if no case can be drawn
        return plan

    def run(self, plan: Plan) -> Campaign:
        """Run the campaign with a progress bar; the checkpoint is written every second.

        Raises:
            CheckpointError: the checkpoint is of another campaign.
            InputError: a campaign on several machines is bounded by a time.
            TraceError: the checkpoint cannot be written.
        """
        if self.episodes is None and is_elsewhere():
            raise InputError("--on", "a time", "--episodes: each machine has a clock of its own")
        by_time, seconds = self.episodes is None, self.seconds or _SECONDS
        path, kept = self.resume, 0.0
        earlier = None if path is None or not path.exists() else read_campaign(plan, path)
        before = earlier.seconds if earlier else 0.0
        batches = Batches(
            plan.batch,
            self.episodes,
            seconds,
            first=earlier.episodes if earlier else 0,
            whole=path is not None,
        )
        total = round(seconds) if by_time else self.episodes
        with progress_bar("seconds" if by_time else "episodes", total) as show:
            show(0, "starting a driver for each core")

            def progress(seen: Campaign) -> None:
                nonlocal kept
                if path is not None and seen.seconds - kept >= KEPT_EVERY_SECONDS:
                    kept = seen.seconds
                    save_campaign(seen, path)
                done = round(seen.seconds - before) if by_time else seen.episodes
                findings = sum(seen.times.values())
                work = f"{counted(seen.episodes, 'episode')}, {counted(seen.steps, 'step')}"
                show(done, f"{work}, {findings} found")

            seen = campaign(plan, batches, progress, earlier)
        if path is not None:
            save_campaign(seen, path)
        return seen


def system_of_command(source: Source) -> System:
    """The system of this process, which is closed when the command ends."""
    system = own_system(source)
    click.get_current_context().call_on_close(system.close)
    return system


def extent_options(
    begun: str = "End after S seconds, shrinking included.", run: str = "episodes"
) -> Option:
    """`--time` and the other options of an `Extent`, as `extent`; needs the `pinned_option`."""
    return gathered(
        "extent",
        Extent,
        click.option(
            "--time",
            "seconds",
            type=SECONDS,
            help=f"{begun}  [default: {_SECONDS:g}]",
        ),
        click.option("--episodes", type=click.IntRange(1), help=f"Run N {run} instead."),
        click.option("--seed", type=click.IntRange(0), default=0, show_default=True),
        click.option(
            "--resume",
            type=KEPT_FILE,
            help="Continue from this file, written every second; --time counts again.",
        ),
        click.option(
            "--start-time",
            "start_seconds",
            type=SECONDS,
            default=START_S,
            show_default=True,
            help="Seconds that a driver may take to start; --time counts from then on.",
        ),
    )


pinned_option = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Do not draw this key."
)
strictness_option = click.option(
    "--strictness",
    type=click.Choice([strictness.value for strictness in Strictness]),
    default=Strictness.EXACT.value,
    show_default=True,
    help="exact: every field; observable: what a trace shows; decisions: what was scheduled.",
)


@contextmanager
def shrinking(seen: Campaign) -> Iterator[Callable[[int], Budget]]:
    """Budgets for shrinking the findings of a campaign: equal parts of the remaining time.

    Yields a function from the number of findings left to the next budget. Shows the progress and
    notes the time in the campaign.
    """
    began = monotonic()
    with progress_bar("shrinking", None) as show:

        def budget(left: int) -> Budget:
            now = monotonic()
            until = now + max(seen.until - now, 0) / left
            return Budget(until=until, progress=partial(progress, left))

        def progress(left: int, runs: int, requests: int) -> None:
            of = counted(left, "finding")
            show(runs, f"{of} left, {counted(requests, 'request')} in the smallest case")

        yield budget
    seen.shrink_seconds = monotonic() - began


def print_campaign(screen: Console, seen: Campaign, findings: Sequence[Found]) -> None:
    """Print findings, counts, known differences and the verdict."""
    print_findings(screen, seen, findings)
    if seen.steps:
        screen.print(counts_table(seen))
        print_lines(screen, *bounds_lines(seen), pairs_line(seen), *situations_lines(seen))
    print_lines(screen, *known_lines(seen), "", verdict(seen, len(findings)))


def print_findings(screen: Console, seen: Campaign, findings: Iterable[Found]) -> None:
    """Print each finding with its small case and the commands that show it."""
    for found in findings:
        print_finding(screen, seen.hello, found.case, found.finding)
        print_wrapped(screen, first_seen_line(seen, found))
        for kind, cause in found.also:
            print_wrapped(screen, f"  the same cause was also seen as {kind}: {cause}")
        print_commands(screen, found)
        screen.print()


def print_commands(screen: Console, found: Found) -> None:
    """Print how the finding was shrunk, and the commands that show it."""
    small = found.small
    size = f"{counted(small.runs, 'run')}, {counted(small.steps, 'step')}"
    print_lines(screen, f"  shrunk in {size}")
    if small.cut:
        print_lines(
            screen, f"  shrinking was ended by {small.cut}; to go on: {found.again} --shrink"
        )
    print_lines(screen, f"  again: {found.again}", f"  look at it: lockstep view {found.path}")


def campaign_report(seen: Campaign, findings: Sequence[Found]) -> dict[str, Any]:
    """The report fields of `fuzz` and `conform`."""
    return {
        "policy": seen.hello.policy,
        "release": seen.hello.release,
        "seed": seen.plan.seed,
        "strictness": seen.plan.terms.strictness.value,
        "left_out": sorted(seen.hello.unreported),
        "set": dict(seen.plan.pinned),
        "episodes": seen.episodes,
        "steps": seen.steps,
        "interrupted": seen.interrupted,
        "actions": dict(sorted(seen.counts.items())),
        "never": seen.never,
        "pairs": dict(sorted(seen.pairs.items())),
        "situations": dict(sorted(seen.situations.items())),
        "unreached": [str(advice) for advice in seen.unreached],
        "verdicts": campaign_verdicts(seen, findings),
        "findings": [_finding_as_json(seen, found) for found in findings],
        "seconds": round(seen.seconds, 3),
        "steps_per_second": round(seen.steps / max(seen.seconds, 1e-9)),
    }


# --- verdicts -------------------------------------------------------------------------------------


def campaign_verdicts(seen: Campaign, findings: Sequence[Found] | None = None) -> Verdicts:
    """The verdicts of a campaign on rules, known differences and findings.

    `findings`: each cause once; None if nothing was shrunk: then every signature counts.
    """
    if findings is None:
        named = {f"{kind}: {cause}": "found" for kind, cause in sorted(seen.times)}
    else:
        named = {
            found.finding.name: "refuted" if found.finding.rule else "found" for found in findings
        }
    verdicts = {
        **verdicts_of(seen.judged_rules, seen.expected, seen.known),
        **dict.fromkeys(seen.overdue, "missed"),
        **named,
        NO_DIFFERENCE: "refuted" if seen.times else "holds",
    }
    if seen.interrupted:  # later episodes could still show a violation
        verdicts |= {name: UNDECIDED for name, verdict in verdicts.items() if verdict == "holds"}
    return verdicts


def verdicts_of(
    rules: Iterable[str], broken: Iterable[str], known: Mapping[str, int]
) -> dict[str, str]:
    """The verdicts of judged rules, those broken as expected, and known differences that showed."""
    met = sorted(id_ for id_, times in known.items() if times)
    return {
        **dict.fromkeys(rules, "holds"),
        **dict.fromkeys(sorted(broken), "broken"),
        **dict.fromkeys(met, "met"),
    }


def campaign_expected(expect: str, command: str, extent: Extent, plan: Plan) -> Expected:
    """The expected verdicts of a campaign of this extent.

    Raises:
        InputError: there are none on record, or they are of other episodes.
    """
    release = own_system(plan.system).hello.release
    asked: Json = {"seed": extent.seed, "episodes": extent.episodes}
    if expect == RECORDED:
        entry = recorded(CONFORMED).get(release)
        asked |= {"strictness": "exact", "set": {}}
        if entry is None:
            on_record = ", ".join(recorded(CONFORMED))
            raise InputError(f"--expect {expect}", release, f"a report, or one of {on_record}")
        there = {**entry, "strictness": plan.terms.strictness.value, "set": dict(plan.pinned)}
        verdicts = verdicts_of(entry["rules"], entry["broken"], entry["known"])
        expected = Expected("on record", verdicts | {NO_DIFFERENCE: "holds"})
    else:
        there = read_report(Path(expect), command)
        asked |= {"strictness": plan.terms.strictness.value, "set": dict(plan.pinned)}
        asked |= {"release": release, "interrupted": False}
        expected = Expected(expect, there.get("verdicts", {}))
    for key, value in asked.items():
        if there.get(key) != value:
            allowed = f"{there.get(key)}, as there; other episodes are not comparable"
            raise InputError(f"--expect {expect}, {key}", value, allowed)
    return expected


def end_campaign(
    seen: Campaign,
    findings: Sequence[Found],
    output: Output,
    report: Json,
    code: int,
    expected: Expected | None,
    driver: str | None = None,
) -> int:
    """Compare with the expected verdicts, if any, and write the report; returns the exit code.

    `driver`: the command's argument.
    """
    cases = [
        *(_finding_case(seen, found, driver) for found in findings),
        *campaign_cases(seen, findings),
    ]
    if expected is None:
        return output.end(code, report, cases)
    compared = expected.compared(report["verdicts"], lambda _: not seen.interrupted)
    return compared.end(output, report, cases)


def _finding_case(seen: Campaign, found: Found, driver: str | None) -> Case:
    """A finding as a CI case: headline, differing fields, the case and the command."""
    finding = found.finding
    place: tuple[str | None, int] = (None, 1)
    if driver is not None and Path(driver).is_file():
        place = _failing_line(Path(driver), finding.primary.says)
    title, *details = finding_lines(seen.hello.name, found.case, finding)
    return Case(
        suite=seen.hello.release,
        name=finding.name,
        status="failed",
        title=title,
        details=(*details, f"again: {found.again}"),
        file=str(found.path),
        source=place[0],
        line=place[1],
    )


_RAISED = re.compile(r"\(([\w.-]+\.py):(\d+)")
_CLASS = re.compile(r"^class \w+.*\bDriver\b", re.MULTILINE)


def _failing_line(driver: Path, says: str) -> tuple[str, int]:
    """The file and line that a finding points at.

    The line that raised the error if its file is beside the driver, else the driver's class, else
    its first line.
    """
    raised = _RAISED.search(says)
    if raised is not None and (path := driver.with_name(raised[1])).is_file():
        return str(path), int(raised[2])
    text = driver.read_text(encoding="utf-8", errors="replace")
    made = _CLASS.search(text)
    return str(driver), 1 if made is None else text.count("\n", 0, made.start()) + 1


def campaign_cases(seen: Campaign, findings: Sequence[Found] | None = None) -> Iterator[Case]:
    """A CI case for each verdict except findings, and for each rule that did not judge."""
    suite, verdicts = seen.hello.release, campaign_verdicts(seen, findings)
    own = {found.finding.name for found in findings or ()}
    if own:
        own.add(NO_DIFFERENCE)  # each difference has its own case
    for name in [name for name in verdicts if name not in own]:
        said = verdicts[name]
        failed = said in ("found", "missed") or (name == NO_DIFFERENCE and said == "refuted")
        yield Case(
            suite=suite,
            name=name,
            status=status_of(violated=failed, undecided=said == UNDECIDED),
            says=RULES[name].sentence if name in RULES else "",
            found=said,
        )
    for rule, lacks in sorted(seen.not_evaluated.items()):
        reason = f"not judged: {lacks} is not reported"
        if rule not in own:
            says = RULES[rule].sentence
            yield Case(suite=suite, name=rule, status="skipped", says=says, found=reason)


def _finding_as_json(seen: Campaign, found: Found) -> dict[str, Any]:
    finding, alone = found.finding, found.finding.alone
    differences = reported(found.case, finding.differences)
    return {
        "kind": finding.kind.value,
        "cause": finding.cause,
        "name": finding.name,
        "says": finding.headline,
        "found": finding.evidence,
        "rule": finding.rule_or_kind,
        "rules": [rule for rule, _ in (*finding.primary.broken, *finding.followed)],
        "followed": [rule for rule, _ in finding.followed],
        "differences": [plain_json(difference) for difference in differences],
        "step": finding.step,
        "harm": None if alone is None else finding.evidence,
        "episode": found.first.episode,
        "times": found.times,
        "also": [f"{kind}: {cause}" for kind, cause in found.also],
        "cut": found.small.cut or None,
        "file": str(found.path),
        **found.case.as_mapping(),
    }
