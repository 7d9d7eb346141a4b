"""What `fuzz` and `conform` have in common: a campaign of random cases, shown and reported."""

from collections.abc import Iterable, Iterator, Mapping
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
from checks.harness.campaign import Batches, Campaign, Found, Plan, Source, campaign, own_system
from checks.harness.comparing import Strictness
from checks.harness.comparison import Terms
from checks.harness.driver.process import answers_until
from checks.harness.report import (
    bounds_lines,
    counts_table,
    first_seen_line,
    known_lines,
    pairs_line,
    print_finding,
    print_wrapped,
    verdict,
)
from checks.harness.resuming import read_campaign, save_campaign
from checks.policies import RULES
from spec.core.errors import InputError

NO_DIFFERENCE = "no unknown difference"
_KEPT_EVERY_SECONDS = 1.0
_SECONDS = 60.0  # unless --time or --episodes says otherwise


@frozen
class Extent:
    """Which episodes are drawn: how long, or how many; from which seed, with which keys set.

    `resume`: the file that keeps how far the campaign is, to go on from if it is there.

    Raises:
        InputError: both a time and a number are given.
    """

    seconds: float | None
    episodes: int | None
    seed: int
    settings: tuple[str, ...]
    resume: Path | None = None

    def __attrs_post_init__(self) -> None:
        if self.seconds is not None and self.episodes is not None:
            raise InputError("--time", self.seconds, "not together with --episodes")

    def of_release(self, version: str) -> "Extent":
        """The same with a release of several, each of which has a file of its own."""
        path = self.resume
        return self if path is None else evolve(self, resume=Path(f"{path}.{version}"))

    def plan(self, source: Source, terms: Terms, batch: int = 1) -> Plan:
        """What a campaign does with this system.

        Raises:
            ConfigError: nothing can be drawn with the keys that are set.
            DriverError: the system cannot be started.
        """
        with answers_until(None if self.seconds is None else monotonic() + self.seconds):
            policy = own_system(source).hello.policy
        pinned = pinned_keys(self.settings, policy)
        plan = Plan(source, self.seed, terms, pinned, batch)
        plan.case(0)  # what cannot be drawn is refused before anything runs
        return plan

    def run(self, plan: Plan) -> Campaign:
        """The campaign, with a bar of episodes or seconds; its file is written every second.

        Raises:
            CheckpointError: the file is of another campaign.
            InputError: it is bounded by a time, and goes to several machines.
            TraceError: it cannot be written.
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

            def progress(seen: Campaign) -> None:
                nonlocal kept
                if path is not None and seen.seconds - kept >= _KEPT_EVERY_SECONDS:
                    kept = seen.seconds
                    save_campaign(seen, path)
                done = round(seen.seconds - before) if by_time else seen.episodes
                found = sum(seen.times.values())
                show(done, f"{seen.episodes:,} episodes, {seen.steps:,} steps, {found} found")

            seen = campaign(plan, batches, progress, earlier)
        if path is not None:
            save_campaign(seen, path)
        return seen


def extent_options(
    begun: str = "episode after S seconds of running", run: str = "episodes"
) -> Option:
    """`--time`, `--episodes`, `--seed`, `--resume`; with the `pinned_option` its `extent`."""
    return gathered(
        "extent",
        Extent,
        click.option(
            "--time",
            "seconds",
            type=SECONDS,
            help=f"Begin no {begun}.  [default: {_SECONDS:g}]",
        ),
        click.option("--episodes", type=click.IntRange(1), help=f"Run so many {run} instead."),
        click.option("--seed", type=click.IntRange(0), default=0, show_default=True),
        click.option(
            "--resume", type=KEPT_FILE, help="Go on from this file, kept every second; --time anew."
        ),
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


def print_campaign(screen: Console, seen: Campaign, findings: Iterable[Found]) -> None:
    """Each finding, what happened, what is known, and the verdict."""
    print_findings(screen, seen, findings)
    screen.print(counts_table(seen))
    print_lines(screen, *bounds_lines(seen), pairs_line(seen), *known_lines(seen))
    screen.print()
    print_lines(screen, verdict(seen))


def print_findings(screen: Console, seen: Campaign, findings: Iterable[Found]) -> None:
    """Each finding: place and rule first, then its small case and the commands that show it."""
    for one in findings:
        print_finding(screen, seen.hello, one.small.case, one.small.finding)
        if one.small.harm:
            print_wrapped(screen, f"  harm: {one.small.harm}")
        print_wrapped(screen, first_seen_line(seen, one.first))
        screen.print(f"  shrunk in {one.small.runs:,} runs, {one.small.steps:,} steps")
        print_lines(screen, f"  again: {one.again}")
        print_lines(screen, f"  look at it: lockstep view {one.path}")
        screen.print()


def campaign_report(seen: Campaign, findings: Iterable[Found]) -> dict[str, Any]:
    """The fields that the reports of both commands have."""
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
        "verdicts": verdicts_of(seen),
        "findings": [_finding_as_json(seen, one) for one in findings],
        "seconds": round(seen.seconds, 3),
        "steps_per_second": round(seen.steps / max(seen.seconds, 1e-9)),
    }


# --- verdicts -------------------------------------------------------------------------------------


def verdicts_of(seen: Campaign) -> Verdicts:
    """What the campaign says of rules, known differences, and what was found."""
    found = {
        **_verdicts(seen.judged_rules, seen.expected, seen.known),
        **dict.fromkeys(seen.overdue, "missed"),
        **{f"{kind}: {cause}": "found" for kind, cause in sorted(seen.times)},
        NO_DIFFERENCE: "refuted" if seen.times else "holds",
    }
    if seen.interrupted:  # what it did not meet, it may yet
        found |= {name: UNDECIDED for name, verdict in found.items() if verdict == "holds"}
    return found


def _verdicts(
    rules: Iterable[str], broken: Iterable[str], known: Mapping[str, int]
) -> dict[str, str]:
    met = sorted(id_ for id_, times in known.items() if times)
    return {
        **dict.fromkeys(rules, "holds"),
        **dict.fromkeys(sorted(broken), "broken"),
        **dict.fromkeys(met, "met"),
    }


def campaign_expected(expect: str, command: str, extent: Extent, plan: Plan) -> Expected:
    """The verdicts that a campaign of this extent is expected to have.

    Raises:
        InputError: none are on record, or they are of other episodes.
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
        verdicts = _verdicts(entry["rules"], entry["broken"], entry["known"])
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
    seen: Campaign, output: Output, report: Json, code: int, expected: Expected | None
) -> int:
    """Print how the verdicts compare if any are expected, and write the report; the exit code."""
    cases = list(campaign_cases(seen, report["findings"]))
    if expected is None:
        return output.end(code, report, cases)
    compared = expected.compared(report["verdicts"], lambda _: not seen.interrupted)
    compared.print_to(output.screen)
    expected_too = report | {"expected": compared.as_mapping()}
    return output.end(compared.exit_code, expected_too, compared.cases(cases))


def campaign_cases(seen: Campaign, findings: Iterable[Json] = ()) -> Iterator[Case]:
    """A case for each verdict, and for each rule that was not judged."""
    files = {f"{one['kind']}: {one['cause']}": one["file"] for one in findings}
    suite, verdicts = seen.hello.release, verdicts_of(seen)
    for name, said in verdicts.items():
        failed = said in ("found", "missed") or (name == NO_DIFFERENCE and said == "refuted")
        yield Case(
            suite=suite,
            name=name,
            status=status_of(violated=failed, undecided=said == UNDECIDED),
            says=RULES[name].sentence if name in RULES else "",
            found=said,
            file=files.get(name),
        )
    for rule, lacks in sorted(seen.not_evaluated.items()):
        found = f"not judged: {lacks} is not reported"
        yield Case(suite=suite, name=rule, status="skipped", says=RULES[rule].sentence, found=found)


def _finding_as_json(seen: Campaign, found: Found) -> dict[str, Any]:
    finding = found.small.finding
    return {
        "kind": finding.kind.value,
        "cause": finding.cause,
        "says": finding.says,
        "rule": finding.rule,
        "rules": [rule for rule, _ in (*finding.broken, *finding.followed)],
        "step": finding.step,
        "harm": found.small.harm or None,
        "episode": found.first.episode,
        "times": seen.times[found.first.finding.signature],
        "file": str(found.path),
        **found.small.case.as_mapping(),
    }
