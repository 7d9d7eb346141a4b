"""Files of any kind as documents for pages.

The reference takes the steps of a file again; beside it stand the steps of a recorded release or of
the system that a finding names. So pages show whole states and verdicts of files that have neither.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from attrs import define, field

from checks.export.outside import placed
from checks.export.pages.document import document_of
from checks.export.pages.situation import Json, Moment
from checks.export.policy import presentation_of
from checks.export.trace.line import Past
from checks.export.trace.reading import Trace, read_trace, steps_of
from checks.harness.campaigns.corpus import Recorded, recorded
from checks.harness.campaigns.recording import Recording, Tape, is_recording, read_recording
from checks.harness.campaigns.replaying import (
    Change,
    broken_between,
    difference_from_file,
    model_of_trace,
    reference_steps,
    served_steps,
)
from checks.harness.campaigns.wording import reported
from checks.harness.case import Case
from checks.harness.comparing import Difference, differences, plain_json
from checks.harness.comparison import Terms, compare, script_of
from checks.harness.finding import Alone, Finding, Kind
from checks.harness.policy import Own, evidence_of
from checks.harness.standalone import with_own_steps
from checks.harness.system import ENGINE, REFERENCE, Action, Step, System
from checks.harness.views.showing import Shown, ShownRelease
from checks.registry import RULES
from reference.core.guards import GuardError


def document_of_file(path: Path) -> Json:
    """The document of a trace, a counterexample, a recording or a finding of `fuzz` or `conform`.

    Raises:
        InputError: the file is none of these, or is malformed.
    """
    if is_recording(path):
        return _of_recording(read_recording(path))
    trace = read_trace(path)
    found = recorded(trace)
    return _of_trace(trace) if found is None else _of_finding(trace, found)


@define
class _Replayed:
    """The steps of a trace, taken again up to the first that differs from the file."""

    trace: Trace
    changes: list[Change] = field(factory=list)
    divergence: Json | None = None
    stopped: str = ""
    count: int = 0

    def steps(self) -> Iterator[Step]:
        """The recorded steps of a full trace, else those of the reference."""
        past = Past()
        codec = presentation_of(self.trace.policy).codec
        try:
            for step in self._taken():
                if self.count == len(self.trace.steps):
                    return  # the workload may go on
                differs = difference_from_file(self.trace, self.count, step, past)
                yield step
                self.count += 1
                if differs is not None:
                    self._note(differs.fields)
                    return
                past = codec.past_after(step, past)
        except GuardError as error:
            self.stopped = str(error)

    def _taken(self) -> Iterator[Step]:
        trace = self.trace
        if "actions" in trace.header:  # arrivals and aborts between steps are shown, too
            model = model_of_trace(trace)
            return (step for step, _ in reference_steps(trace, model, self.changes))
        return steps_of(trace) if trace.header.get("full", False) else served_steps(trace)

    def _note(self, fields: Mapping[str, tuple[Any, Any]]) -> None:
        found = [
            {"field": name, "place": "", "expected": plain_json(now), "found": plain_json(written)}
            for name, (written, now) in fields.items()
        ]
        self.divergence = {"frame": self.count - 1, "fields": found}


def _of_trace(trace: Trace) -> Json:
    ctx, replayed = trace.context(), _Replayed(trace)
    shown = Shown(ctx, is_reported=trace.header.get("full", False))
    frames = list[int]()  # in which the rule of the violation is broken
    rule = None if trace.violation is None else trace.violation.rule

    def moments() -> Iterator[tuple[Moment]]:
        for step in replayed.steps():
            moment = shown.moment(step)
            if rule in dict(moment.verdicts.broken):
                frames.append(replayed.count)
            yield (moment,)
        yield from after_the_last_step()

    def after_the_last_step() -> Iterator[tuple[Moment]]:
        ending = [change for change in replayed.changes if change.index == replayed.count]
        if ending:
            found = {broken.rule: broken.found for broken in broken_between(ending, shown.judge)}
            if rule in found:
                frames.append(replayed.count)
            state, violations = ending[-1].after, tuple(found.items())
            yield (shown.between(state, replayed.count, "at the end", violations),)

    document = document_of(
        ctx,
        moments(),
        title=trace.path.name,
        sides=(str(trace.header["source"]) if trace.header.get("full") else REFERENCE,),
        violation=None if rule is None else {"rule": rule},
    )
    last = document["overview"]["count"] - 1
    if (violation := trace.violation) is not None:
        document["violation"] = {
            "frame": frames[0] if frames else last,
            "rule": violation.rule,
            "says": violation.says,
            "found": replayed.stopped or plain_json(violation.found),
            **({} if violation.loop is None else {"loop": min(violation.loop, last)}),
        }
    document["divergence"] = replayed.divergence
    document["about"] = _about_trace(trace, replayed)
    return document


def _about_trace(trace: Trace, replayed: _Replayed) -> str:
    if replayed.divergence is not None:
        return (
            f"The reference takes step {replayed.count - 1} otherwise than the file says;"
            " the fields that differ are below."
        )
    if trace.violation is not None and trace.violation.loop is not None:
        return "A run that repeats for ever: its last part begins again where it ends."
    if trace.incomplete:
        return "The run was ended before its requests were served."
    return ""


# --- two sides ------------------------------------------------------------------------------------


def _of_recording(recording: Recording) -> Json:
    title = recording.path.name
    is_said = recording.outcome.get("finding") or not recording.about
    about = "" if is_said else f"{recording.about}."
    case, terms, own = recording.case, recording.terms, recording.own_steps
    with placed(recording.path):
        return _compared(recording, case, terms, title=title, about=about, own_steps=own)


def _of_finding(trace: Trace, found: Recorded) -> Json:
    """The reference beside the compared system; the reference alone if that is a driver."""
    if found.using not in (REFERENCE, ENGINE):
        document = _of_trace(trace)
        fields = trace.violation.found.get("differences", []) if trace.violation else []
        document["divergence"] = {"frame": found.step, "fields": fields}
        document["about"] = f"The steps of the reference; {found.using} differs in the last."
        return document
    system = Own(found.case.config.policy, found.using).open()
    return _compared(system, found.case, found.terms, title=trace.path.name, about="")


def _compared(
    system: System,
    case: Case,
    terms: Terms,
    *,
    title: str,
    about: str,
    own_steps: Alone | None = None,
) -> Json:
    """Both sides, step by step, with the finding of the comparison."""
    tape = Tape(system)
    episode = compare(tape, case, terms)
    steps = [taken.step for taken in tape.taken]
    script = script_of(system, case, terms)
    for _ in zip(tape.actions, script, strict=False):  # the reference takes as many steps
        pass
    ctx, release = script.ctx, system.hello.release
    is_driver = "events" not in system.hello.abilities
    theirs = ShownRelease(ctx, system=system) if is_driver else Shown(ctx)
    found = _moments(theirs, steps, tape.actions)
    finding = episode.finding
    if finding is not None:
        finding = with_own_steps(system, case, terms, finding, own_steps)
    violation = None if finding is None else _violation(finding)
    if violation is None and tape.failure is not None:
        says = "The system raises an error instead of taking the step."
        violation = {"frame": len(steps), "rule": Kind.CRASH.value, "says": says}
        violation["found"] = str(tape.failure)
    frames: Iterable[Sequence[Moment | None]]
    if terms.rules_only:
        frames, sides = ((moment,) for moment in found), [release]
    else:
        most = len(steps) + (tape.failure is not None)
        frames = zip_longest(_moments(Shown(ctx), script.steps[:most], tape.actions), found)
        sides = [REFERENCE, release]
    document = document_of(ctx, frames, title=title, sides=sides, violation=violation)
    if finding is not None and finding.differences:
        document["divergence"] = _fields_in_frame(case, finding.step, finding.differences)
    elif not terms.rules_only:
        document["divergence"] = _divergence(
            system, case, terms, zip(script.steps, steps, strict=False)
        )
    known = f" A known difference: {episode.known}." if episode.known else ""
    document["about"] = f"{about}{known}".strip()
    return document


def _moments(shown: Shown, steps: Iterable[Step], actions: Iterable[Action]) -> Iterator[Moment]:
    for step, action in zip(steps, actions, strict=False):
        yield shown.moment(step, aborted_while_running=bool(action.abort_running))


def _violation(finding: Finding) -> Json:
    """The finding, at the step in which it shows."""
    says = RULES[finding.rule].sentence if finding.rule else finding.headline
    found = finding.evidence.removeprefix("found ")
    is_crash = finding.primary.kind is Kind.CRASH
    rule = finding.rule or (Kind.CRASH.value if is_crash else "")
    return {"frame": finding.step, "rule": rule, "says": says, "found": found}


def _divergence(
    system: System, case: Case, terms: Terms, pairs: Iterable[tuple[Step, Step]]
) -> Json | None:
    """The fields of the first step that differs between the two sides."""
    evidence, hello = evidence_of(case.config.policy), system.hello
    is_driver = "events" not in hello.abilities
    left_out = evidence.adapter.fields.not_compared(hello.unreported) if is_driver else ()
    look = evidence.compared[terms.strictness]
    for index, (ours, theirs) in enumerate(pairs):
        if seen := differences(look, ours, theirs, left_out):
            return _fields_in_frame(case, index, seen)
    return None


def _fields_in_frame(case: Case, frame: int, seen: Iterable[Difference]) -> Json:
    return {"frame": frame, "fields": [*map(plain_json, reported(case, seen))]}
