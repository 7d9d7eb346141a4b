"""`lockstep check`: judge the log of a running server."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from time import sleep

import click

from checks.cli import exit_code
from checks.cli.ci import Case as CiCase
from checks.cli.ci import status_of
from checks.cli.common import Output, directory_option, json_option, print_lines, progress_bar
from checks.cli.outputs import PATH, Command
from checks.ending import deferred, stopping
from checks.harness.campaigns.report import finding_lines, print_finding
from checks.harness.case import Case
from checks.harness.finding import Finding, Kind
from checks.harness.logs.cutting import Moments, cut
from checks.harness.logs.reading import LogReader
from checks.harness.logs.watching import Watch
from checks.harness.system import Hello, Json
from checks.words import counted

_POLL_S = 0.2
_MOST_NAMES = 12  # of rules, in a line


@click.command(cls=Command)
@click.argument("log", type=PATH)
@click.option("--follow", is_flag=True, help="Go on as the log grows, until a signal or a finding.")
@directory_option("--findings", default="findings")
@json_option
def check(log: Path, follow: bool, findings: Path, output: Output) -> int:
    """Judge the LOG of a running server.

    Every rule whose fields the log has judges every step, and the reference, given the log's
    arrivals, aborts, ends and tokens, must take the same decisions. What was not compared and not
    judged is named. A finding is cut out of the log as a case for `lockstep conform --case`. The
    chapter on logs describes the format, and the recorder for vLLM. Exit code 3: a signal ended it,
    or the log has no step.
    """
    with deferred(), closing(LogReader(log, lambda: follow and _waited())) as reader:
        watch, cuts = watched_log(reader, log, findings, follow=follow)
    _print(output, watch, cuts)
    code = exit_code(violated=watch.seen.findings, incomplete=stopping() or not watch.seen.steps)
    return output.end(code, _report(watch, cuts), _cases(watch, log, cuts))


def _waited() -> bool:
    """Wait for more of the log; false once a signal has come."""
    sleep(_POLL_S)
    return not stopping()


def watched_log(
    reader: LogReader, log: Path, directory: Path, *, follow: bool = False
) -> tuple[Watch, dict[str, Path | None]]:
    """Read the log to its end, or, where it is followed, to its first finding.

    Also returns the case that each finding was cut to, by its name; None if no part shows it.
    """
    watch, moments = Watch(reader.header), Moments()
    cuts: dict[str, Path | None] = {}
    with progress_bar("steps", None) as progress:
        for _ in reader.entries(watch.observe):
            for finding in watch.seen.findings.values():
                if finding.name not in cuts:
                    near = moments.before(finding.step)
                    cuts[finding.name] = cut(log, near, watch, finding, directory)
            moments.note(watch, reader)
            if watch.seen.steps % 100 == 0:
                progress(watch.seen.steps, "")
            if stopping() or (follow and watch.seen.findings):
                break
    return watch, cuts


def _print(output: Output, watch: Watch, cuts: dict[str, Path | None]) -> None:
    screen, header = output.screen, watch.header
    release = header.release or header.policy
    for finding in in_order(watch):
        hello = Hello(header.policy, release, header.policy)
        print_finding(screen, hello, Case(header.config, ()), finding)
        print_lines(screen, *_place(watch, finding), *_next(cuts[finding.name]))
    steps, requests = counted(watch.seen.steps, "step"), counted(watch.seen.requests, "request")
    print_lines(screen, f"{release}: {steps}, {requests}", *_compared(watch), *_judged(watch))
    if watch.seen.stopped:
        print_lines(screen, f"  the recorder stopped: {watch.seen.stopped}")


def in_order(watch: Watch) -> list[Finding]:
    """The findings by step, in each the broken rule before the fields that differ."""
    findings = watch.seen.findings.values()
    return sorted(
        findings, key=lambda finding: (finding.step, finding.kind is not Kind.BROKEN_RULE)
    )


def _place(watch: Watch, finding: Finding) -> Iterator[str]:
    at = watch.seen.times[finding.signature]
    when = "" if at is None else f", at {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    yield f"  line {watch.seen.lines[finding.signature]} of the log{when}"
    times = watch.seen.repeated[finding.cause]
    if times > 1:
        yield f"  broken in {counted(times, 'step')}"


def _next(path: Path | None) -> Iterator[str]:
    if path is None:
        yield "  no part of the log that begins with an idle server shows it: no case was written"
        return
    yield f"  run it again: lockstep conform DRIVER --case {path}"
    yield f"  without a server: lockstep conform DRIVER --case {path} --recorded"


def _compared(watch: Watch) -> Iterator[str]:
    seen = watch.seen
    if seen.compared:
        yield f"  compared with the reference: {counted(seen.compared, 'step')}, all equal in"
        yield f"    {', '.join(seen.compared_fields)}"
    if seen.known:
        yield f"  then {seen.known}, a known difference of this release"
    if seen.not_compared:
        further = " further" if seen.compared else ""
        yield f"  not compared{further}: {seen.not_compared}"


def _judged(watch: Watch) -> Iterator[str]:
    judged, lacking = watch.judged_rules, watch.not_judged
    yield f"  rules: {len(judged)} judged, {len(lacking)} not judged"
    if judged:
        yield f"    judged: {_named(judged)}"
    by_field: dict[str, list[str]] = {}
    for rule, field in lacking.items():
        by_field.setdefault(field, []).append(rule)
    for field, rules in by_field.items():
        yield f"    not judged without {field}: {_named(rules)}"
    if watch.missing_fields:
        yield f"  fields that the log does not have: {', '.join(watch.missing_fields)}"


def _named(rules: list[str]) -> str:
    more = len(rules) - _MOST_NAMES
    return ", ".join(rules[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _report(watch: Watch, cuts: dict[str, Path | None]) -> Json:
    return {
        "release": watch.header.release,
        "policy": watch.header.policy,
        "steps": watch.seen.steps,
        "requests": watch.seen.requests,
        "compared": watch.seen.compared,
        "compared_fields": watch.seen.compared_fields,
        "not_compared": watch.seen.not_compared,
        "known": watch.seen.known,
        "judged": watch.judged_rules,
        "not_judged": dict(watch.not_judged),
        "missing_fields": watch.missing_fields,
        "expected": dict(watch.seen.expected),
        "stopped": watch.seen.stopped,
        "findings": [
            {
                "kind": finding.kind.value,
                "rule": finding.rule_or_kind,
                "cause": finding.cause,
                "step": finding.step,
                "line": watch.seen.lines[finding.signature],
                "at": watch.seen.times[finding.signature],
                "says": finding.headline,
                "found": finding.evidence,
                "file": None if (path := cuts[finding.name]) is None else str(path),
            }
            for finding in in_order(watch)
        ],
    }


def _cases(watch: Watch, log: Path, cuts: dict[str, Path | None]) -> list[CiCase]:
    release = watch.header.release or watch.header.policy
    broken = {finding.cause: finding for finding in watch.seen.findings.values()}
    cases = []
    for name in dict.fromkeys([*watch.judged_rules, *broken]):
        finding = broken.get(name)
        lines = (
            ("",)
            if finding is None
            else finding_lines(release, Case(watch.header.config, ()), finding)
        )
        title, *details = lines
        file = str(log) if finding is None else str(cuts[finding.name] or log)
        cases.append(
            CiCase(
                suite=release,
                name=name,
                status=status_of(violated=finding is not None),
                found="" if finding else f"holds in {counted(watch.seen.steps, 'step')}",
                title=title,
                details=tuple(details),
                file=file,
            )
        )
    return cases
