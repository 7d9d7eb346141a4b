"""`lockstep replay`: run again what a trace or a counterexample says, and compare."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import click
from attrs import asdict
from attrs.filters import exclude
from rich.console import Console
from rich.text import Text

from checks.cli import exit_code
from checks.cli.ci import Case, status_of
from checks.cli.common import Output, json_option
from checks.cli.expect import RECORDED
from checks.cli.outputs import NAME_OR_FILE, NEW_FILE, PATH, Command
from checks.export.itf import write_itf
from checks.export.policy import presentation_of
from checks.export.trace.reading import Trace, read_trace
from checks.harness.campaigns.corpus import Recorded, recorded
from checks.harness.campaigns.elsewhere import Elsewhere, replay_on_driver
from checks.harness.campaigns.recording import is_recording, read_recording, refuse_impossible
from checks.harness.campaigns.replaying import BrokenRule, Replay, refuse_unknown_rules, replay_of
from checks.harness.campaigns.report import print_finding, shown
from checks.harness.comparison import compare
from checks.harness.driver.system import DriverCommand
from checks.harness.finding import Episode
from checks.harness.policy import Own, evidence_of, system_of
from checks.harness.standalone import with_own_steps
from checks.harness.system import ENGINE, REFERENCE
from checks.releases.environments import command_of
from checks.words import counted
from spec.core.errors import InputError, TraceError
from spec.core.records import SomeStep

_OWN = f"{REFERENCE}, {ENGINE}"


@click.command(cls=Command)
@click.argument("file", type=PATH)
@click.option(
    "--target",
    type=NAME_OR_FILE,
    help=f"What schedules this time: {_OWN}; of a counterexample or finding also a driver."
    "  [default: what diverged; of any other file the reference]",
)
@click.option(
    "--expect",
    type=click.Choice([RECORDED]),
    help="Exit code 0 if all is as the file says, its violation or finding included; else 1.",
)
@click.option("--steps", is_flag=True, help="Print the steps of a trace without violation too.")
@click.option("--states", is_flag=True, help="Print the whole state after each step.")
@click.option("--itf", "itf_path", type=NEW_FILE, help="Write it as an ITF trace too.")
@json_option
def replay(
    file: Path,
    target: str | None,
    expect: str | None,
    steps: bool,
    states: bool,
    itf_path: Path | None,
    output: Output,
) -> int:
    """Run again what FILE says and compare, step by step.

    FILE is a trace of `run --trace`, a counterexample, or a finding of `fuzz`. A counterexample is
    printed with its steps, their changes and the broken rule; a finding with its differences. Exit
    code 0: every step is as in the file, no rule is broken and nothing is found; 1: the violation
    is confirmed, it is in the file and not confirmed, or a step differs. With --expect recorded 0:
    the violation or finding in the file is confirmed.
    """
    if is_recording(file):
        allowed = f"a trace; of a recording: {read_recording(file).repeat_command(file)}"
        raise TraceError("format", "lockstep-recording", allowed).at(file)
    trace = read_trace(file)
    refuse_unknown_rules(trace)
    screen = output.screen
    found = recorded(trace)
    if found is not None:
        return _replay_finding(trace, found, target, expect, steps, output)
    target = target or REFERENCE
    policy = trace.config.policy
    if target not in (REFERENCE, ENGINE):
        if "actions" not in trace.header:
            allowed = f"{_OWN} for a trace; a driver, for a counterexample or what fuzz found"
            raise InputError("--target", target, allowed)
        return _done_elsewhere(trace, target, expect, output)
    if target == ENGINE and evidence_of(policy).engine is None:
        raise InputError("--target", target, f"{REFERENCE} for {policy}, which has no engine")
    result = replay_of(trace, None if target == REFERENCE else system_of(policy, target))
    for step in result.steps if steps or states or trace.violation else ():
        print_step(screen, policy, step, states)
    confirmed = result.confirms and result.difference is None
    print_end(screen, trace, result)
    if itf_path is not None:
        write_itf(itf_path, presentation_of(policy).codec, result.steps, trace.violation)
        screen.print(f"written: {itf_path}")
    report = {
        "file": str(file),
        "target": target,
        "steps": len(result.steps),
        "confirmed": confirmed,
        "violations": [asdict(broken, filter=exclude("says")) for broken in result.broken],
        "difference": None if result.difference is None else asdict(result.difference),
    }
    differs = result.broken or result.difference or not confirmed
    as_expected = confirmed if trace.violation else not differs
    code = exit_code(violated=not as_expected if expect else differs)
    return output.end(code, report, [_case(trace, target, code, result.broken)])


def _case(trace: Trace, target: str, code: int, broken: Sequence[BrokenRule] = ()) -> Case:
    """The CI case of the file."""
    rule = trace.violation.rule if trace.violation else "steps"
    found = "; ".join(f"{row.rule} in step {row.step}: {row.found}" for row in broken)
    return Case(
        suite=target,
        name=f"{trace.path.name}: {rule}",
        status=status_of(violated=code),
        says=trace.violation.says if trace.violation else "The steps are as the file says.",
        found=found,
        file=str(trace.path),
    )


def _done_elsewhere(trace: Trace, target: str, expect: str | None, output: Output) -> int:
    """Replay a counterexample on a released scheduler."""
    with closing(DriverCommand(command_of(target)).open()) as system:
        name, result = system.hello.release, replay_on_driver(trace, system)
    print_elsewhere(output.screen, trace, name, result)
    confirmed = result.confirms(trace)
    report = {
        "target": name,
        "steps": result.steps,
        "confirmed": confirmed,
        "violations": [{"rule": rule, "found": found} for rule, found in result.broken.items()],
        "failure": None if result.failure is None else str(result.failure),
        "difference": [*map(str, result.differs)] or None,
    }
    violated = not confirmed if expect else confirmed or result.differs
    code = exit_code(violated=violated)
    return output.end(code, report, [_case(trace, name, code)])


def print_elsewhere(screen: Console, trace: Trace, name: str, result: Elsewhere) -> None:
    """Print the result of a counterexample on a release: steps, differences, broken rules."""
    screen.print(f"{name}: {result.steps} of {counted(len(trace.steps), 'step')} as the reference")
    for difference in result.differs:
        screen.print(f"  {difference}")
    if result.failure is not None:
        screen.print(f"  raises {result.failure}")
    for rule, found in result.broken.items():
        screen.print(Text.assemble((rule, "bold red"), f" is broken: {found}"))
    rule = trace.violation.rule if trace.violation else ""
    screen.print(f"the violation of {rule} is {'' if result.confirms(trace) else 'not '}confirmed")


def _replay_finding(
    trace: Trace,
    recorded: Recorded,
    target: str | None,
    expect: str | None,
    steps: bool,
    output: Output,
) -> int:
    """Compare the case of a finding again, by default with the system in the file."""
    name, screen = target or recorded.using, output.screen
    if target is None and name not in (REFERENCE, ENGINE):
        raise TraceError("target", name, f"{_OWN}; or --target").at(trace.path)
    own = Own(recorded.case.config.policy, name)
    source = own if name in (REFERENCE, ENGINE) else DriverCommand(command_of(name))
    with closing(source.open()) as system:
        refuse_impossible(system.hello, recorded.case, recorded.terms, trace.path)
        episode = compare(system, recorded.case, recorded.terms)
        found = episode.finding
        if found is not None:
            found = with_own_steps(system, recorded.case, recorded.terms, found)
    for step in found.steps if found and steps else ():
        print_step(screen, recorded.case.config.policy, step, states=False)
    if found is not None:
        print_finding(screen, system.hello, recorded.case, found)
    screen.print(finding_verdict(recorded, name, episode))
    confirmed = found is not None and recorded.confirms(found)
    report = {
        "target": name,
        "steps": episode.steps,
        "confirmed": confirmed,
        "finding": None if found is None else {"kind": found.kind.value, "cause": found.cause},
    }
    violated = not confirmed if expect else found is not None
    code = exit_code(violated=violated)
    return output.end(code, report, [_case(trace, name, code)])


def finding_verdict(recorded: Recorded, name: str, episode: Episode) -> str:
    """One line: whether the finding of `fuzz` is confirmed."""
    found = episode.finding
    if found is None:
        strictness = recorded.terms.strictness
        return f"{name}: nothing found in {counted(episode.steps, 'step')} compared ({strictness})"
    if recorded.confirms(found):
        return f"the {recorded.kind} is confirmed"
    was = f"{recorded.kind} in step {recorded.step}, {recorded.cause}"
    return f"the file says: {was}; {name} does otherwise"


def print_step(screen: Console, policy: str, step: SomeStep, states: bool) -> None:
    """Print the step, its transitions and the changed fields."""
    refused = f", prefill refused by {step.refusal}" if step.refusal else ""
    what = f" {step.kind}: {_size(policy, step)}{refused}"
    screen.print(Text.assemble((f"step {step.index}", "bold"), what))
    for line in _changes(step):
        screen.print(f"    {line}")
    if states:
        screen.print(step.after)


def _size(policy: str, step: SomeStep) -> str:
    """The size of the step in its policy's units, else the tokens of each request."""
    size = presentation_of(policy).codec.size(step)
    if len(size) > 1 and any(size.values()):
        return ", ".join(f"{name} {value}" for name, value in size.items())
    scheduled = ", ".join(f"{tokens} of {name}" for name, tokens in step.scheduled.items())
    return f"tokens {scheduled or 'none'}"


_SHOWN = ("computed", "generated", "left_padding", "tkv", "drafts", "load")


def _changes(step: SomeStep) -> Iterator[str]:
    """Lines with aborts, transitions, and the changed fields of each request."""
    if step.aborted:
        yield f"aborted before: {', '.join(step.aborted)}"
    for event in step.events:
        yield shown(event)
    before = {row.id: row for row in step.before.present}
    for row in step.after.present:
        last = before.get(row.id, row)  # a session goes on under another name
        changed = [
            f"{name} {getattr(last, name)} -> {getattr(row, name)}"
            for name in _SHOWN
            if getattr(last, name, None) != getattr(row, name, None)
        ]
        if changed:
            yield f"request {row.id}: {', '.join(changed)}"


def print_end(screen: Console, trace: Trace, result: Replay) -> None:
    """Print the difference from the file, the broken rules, and whether the file is confirmed."""
    if result.difference is not None:
        screen.print(Text.assemble((f"step {result.difference.step} differs", "bold red")))
        for name, (written, now) in result.difference.fields.items():
            screen.print(f"  {name}: the file says {shown(written)}, now {shown(now)}")
    for broken in result.broken:
        where = f" is broken in step {broken.step}"
        screen.print(Text.assemble((broken.rule, "bold red"), where))
        screen.print(f"  says: {broken.says}")
        screen.print(f"  found: {broken.found}")
    if trace.violation is not None:
        confirmed = any(row.rule == trace.violation.rule for row in result.broken)
        screen.print(
            "the violation is confirmed"
            if confirmed and result.difference is None
            else f"the violation of {trace.violation.rule} is not confirmed"
        )
    elif result.difference is None and not result.broken:
        screen.print(f"{counted(len(result.steps), 'step')} as in the file, no rule broken")
