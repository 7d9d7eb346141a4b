"""Files of any kind as documents for pages.

What a file says is taken again: the steps of the reference, and beside them those of a recorded
release or of the system that a finding names. So a page shows whole states and verdicts also of
files that have neither.
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
from checks.harness.case import Case
from checks.harness.comparing import differences, plain_json
from checks.harness.comparison import Terms, compare, script_of
from checks.harness.corpus import Recorded, recorded
from checks.harness.finding import Alone, Finding, Kind
from checks.harness.paths import AnyScript
from checks.harness.policy import Own, evidence_of
from checks.harness.recording import Recording, is_recording, read_recording
from checks.harness.replaying import (
    Change,
    difference_from_file,
    model_of_trace,
    reference_steps,
    served_steps,
)
from checks.harness.showing import Found, Shown, ShownRelease
from checks.harness.standalone import with_own_steps
from checks.harness.system import ENGINE, REFERENCE, Action, Failure, Step, System, Taken
from checks.harness.wording import reported
from checks.registry import RULES
from reference.core.guards import GuardError


def document_of_file(path: Path) -> Json:
    """The document of a trace, a counterexample, a recording, or what `fuzz` or `conform` wrote.

    Raises:
        InputError: the file is none of these, or says what cannot be.
    """
    if is_recording(path):
        return _of_recording(read_recording(path))
    trace = read_trace(path)
    found = recorded(trace)
    return _of_trace(trace) if found is None else _of_finding(trace, found)


@define
class _Replayed:
    """The steps of a trace, taken again up to the first that the file has otherwise."""

    trace: Trace
    changes: list[Change] = field(factory=list)
    divergence: Json | None = None
    stopped: str = ""
    count: int = 0

    def steps(self) -> Iterator[Step]:
        """As the scheduler recorded them, or as the reference takes them."""
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
        if "actions" in trace.header:  # what happens between steps is shown, too
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
        ending = [one for one in replayed.changes if one.index == replayed.count]
        if ending:
            yield (shown.between(ending[-1].after, replayed.count, "at the end", _broken(ending)),)

    def _broken(changes: Sequence[Change]) -> Found:
        found = {
            rule.id: what
            for one in changes
            for rule in shown.judge.rules
            if (
                what := rule.found_in_state(ctx, one.after)
                or rule.found_between(ctx, one.before, one.after)
            )
        }
        if rule in found:
            frames.append(replayed.count)
        return tuple(found.items())

    document = document_of(
        ctx,
        moments(),
        title=trace.path.name,
        sides=(str(trace.header["source"]) if trace.header.get("full") else REFERENCE,),
        violation=None if rule is None else {"rule": rule},
    )
    last = document["overview"]["count"] - 1
    if trace.violation is not None:
        one = trace.violation
        document["violation"] = {
            "frame": frames[0] if frames else last,
            "rule": one.rule,
            "says": one.says,
            "found": replayed.stopped or plain_json(one.found),
            **({} if one.loop is None else {"loop": min(one.loop, last)}),
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


@define
class _Noted:
    """A system that keeps the steps that are taken of it, and the failure that ended them."""

    system: System
    steps: list[Step] = field(factory=list)
    actions: list[Action] = field(factory=list)
    failure: Failure | None = None

    @property
    def hello(self) -> Any:
        return self.system.hello

    def play(self, case: Case, actions: Iterable[Action]) -> Iterator[Taken | Failure]:
        for taken in self.system.play(case, map(self._noted, actions)):
            if isinstance(taken, Failure):
                self.failure = taken
            else:
                self.steps.append(taken.step)
            yield taken

    def _noted(self, action: Action) -> Action:
        self.actions.append(action)
        return action

    def close(self) -> None:
        self.system.close()


def _of_recording(recording: Recording) -> Json:
    title = recording.path.name
    is_said = recording.outcome.get("finding") or not recording.about
    about = "" if is_said else f"{recording.about}."
    case, terms, own = recording.case, recording.terms, recording.own_steps
    with placed(recording.path):
        return _compared(recording, case, terms, title=title, about=about, own_steps=own)


def _of_finding(trace: Trace, found: Recorded) -> Json:
    """The reference beside the system that was compared; alone, where that cannot be had here."""
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
    """Both sides, step by step, with what the comparison says of them."""
    noted = _Noted(system)
    episode = compare(noted, case, terms)
    script = script_of(system, case, terms)
    for _ in zip(noted.actions, script, strict=False):  # the reference takes as many steps
        pass
    ctx, release = script.ctx, system.hello.release
    is_driver = "events" not in system.hello.abilities
    theirs = ShownRelease(ctx, system=system) if is_driver else Shown(ctx)
    found = _moments(theirs, noted.steps, noted.actions)
    finding = episode.finding
    if finding is not None:
        finding = with_own_steps(system, case, terms, finding, own_steps)
    violation = None if finding is None else _violation(finding)
    if violation is None and noted.failure is not None:
        violation = _raised(len(noted.steps), noted.failure)
    frames: Iterable[Sequence[Moment | None]]
    if terms.rules_only:
        frames, sides = ((one,) for one in found), [release]
    else:
        most = len(noted.steps) + (noted.failure is not None)
        frames = zip_longest(_moments(Shown(ctx), script.steps[:most], noted.actions), found)
        sides = [REFERENCE, release]
    document = document_of(ctx, frames, title=title, sides=sides, violation=violation)
    if finding is not None and finding.differences:
        fields = [plain_json(one) for one in reported(case, finding.differences)]
        document["divergence"] = {"frame": finding.step, "fields": fields}
    elif not terms.rules_only:
        document["divergence"] = _divergence(system, case, terms, script, noted)
    known = f" A known difference: {episode.known}." if episode.known else ""
    document["about"] = f"{about}{known}".strip()
    return document


def _moments(shown: Shown, steps: Iterable[Step], actions: Iterable[Action]) -> Iterator[Moment]:
    for step, action in zip(steps, actions, strict=False):
        yield shown.moment(step, aborted_while_running=bool(action.abort_running))


def _violation(finding: Finding) -> Json:
    """What the comparison found, at the step in which it shows."""
    says = RULES[finding.rule].sentence if finding.rule else finding.headline
    found = finding.evidence.removeprefix("found ")
    is_crash = finding.primary.kind is Kind.CRASH
    rule = finding.rule or (Kind.CRASH.value if is_crash else "")
    return {"frame": finding.step, "rule": rule, "says": says, "found": found}


def _raised(frame: int, failure: Failure) -> Json:
    """What the system raised where that is known."""
    says = "The system raises an error instead of taking the step."
    return {"frame": frame, "rule": Kind.CRASH.value, "says": says, "found": str(failure)}


def _divergence(
    system: System, case: Case, terms: Terms, script: AnyScript, noted: _Noted
) -> Json | None:
    """The first step that is not the same on both sides, field by field."""
    if terms.rules_only:
        return None
    evidence, hello = evidence_of(case.config.policy), system.hello
    is_driver = "events" not in hello.abilities
    left_out = evidence.adapter.fields.not_compared(hello.unreported) if is_driver else ()
    look = evidence.compared[terms.strictness]
    for index, (one, other) in enumerate(zip(script.steps, noted.steps, strict=False)):
        seen = differences(look, one, other, left_out)
        if seen:
            return {"frame": index, "fields": [plain_json(one) for one in reported(case, seen)]}
    return None
