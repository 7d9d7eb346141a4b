"""The one comparison: a system and the reference over the same case, step by step.

What differs, what a rule forbids, what a device of ours refuses: the first of them ends the
episode. A known difference ends it, too. `judge_alone` does without the reference: only rules and
device judge, and each thing that is wrong is noted.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any

from attrs import define, field, frozen

from checks.harness.case import Case
from checks.harness.comparing import Difference, Strictness, differences
from checks.harness.difference import Evidence, KnownDifference
from checks.harness.driver.protocol import DriverError
from checks.harness.finding import FOR_EVER, Episode, Finding, Kind
from checks.harness.judging import Judge
from checks.harness.script import Script, most_steps
from checks.harness.system import Action, Failure, Json, Raised, Step, System, Taken
from checks.policies import policy_of
from reference.core.guards import GuardError
from spec.core.configuration import PolicyConfig
from spec.core.records import IDLE, Event

# --- terms ----------------------------------------------------------------------------------------


@frozen
class Terms:
    """How a system is compared.

    `aborts_while_running`: aborts come while the model runs, if the system can do that. `judged`:
    its own steps are held against the registry, too.
    """

    strictness: Strictness = Strictness.EXACT
    aborts_while_running: bool = False
    judged: bool = True


def can(system: System, ability: str) -> bool:
    """True if the system says so."""
    return ability in system.hello.abilities


def script_for(system: System, case: Case, terms: Terms) -> Script:
    """The script of a case, with what the system can do.

    Raises:
        WorkloadError: a request that could never be served.
    """
    while_running = terms.aborts_while_running and can(system, "abort_running")
    return Script(case, while_running, can(system, "abort_gone"))


# --- one episode ----------------------------------------------------------------------------------


def compare(system: System, case: Case, terms: Terms) -> Episode:
    """Both serve the case until it is over or something is found.

    Raises:
        WorkloadError: a request that could never be served.
        DriverError: a driver process does not speak the protocol.
    """
    run = _Comparison(system, case, terms, script_for(system, case, terms))
    run.compare()
    run.note_overdue()
    return run.episode


@define
class _Comparison:
    system: System
    case: Case
    terms: Terms
    script: Script
    episode: Episode = field(factory=Episode)
    _own: "_OwnSteps" = field(init=False)
    _not_compared: frozenset[str] = field(init=False)
    _known: dict[str, KnownDifference] = field(init=False)
    _taken: list[Taken] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        hello, policy = self.system.hello, policy_of(self.case.config)
        self._own = _OwnSteps(self.system, self.case.config, self.script.ctx)
        # What a driver leaves out is inferred; of a system in this process the fields are named.
        fields = policy.adapter.fields if self._own.is_driver else None
        self._not_compared = (
            hello.unreported if fields is None else fields.not_compared(hello.unreported)
        )
        self._known = {
            one.id: one for one in policy.known_differences if one.is_of(hello.name, hello.release)
        }

    def compare(self) -> None:
        """Step by step, up to the first that is wrong."""
        steps, index = self.script.steps, 0
        for taken in self.system.play(self.case, self.script):
            if isinstance(taken, Failure):
                self._failed(index, taken)
                return
            if index < len(steps):  # a recording may have more, of an earlier bound on steps
                self._taken.append(taken)
                if not self._agrees(index, taken):
                    return
                index += 1
        self._ended()

    def _agrees(self, index: int, taken: Taken) -> bool:
        """The system's step does what the reference's does, and nothing else is wrong."""
        expected, action = self.script.steps[index], self.script.actions[index]
        seen = self._differences(expected, taken)
        if seen:
            self._differs(index, taken.step, seen)
            return False
        self.episode.steps += 1
        self._count(expected, action, index)
        self._own_step(index, taken, action)
        return self.episode.finding is None

    def _differences(self, expected: Step, taken: Taken) -> tuple[Difference, ...]:
        policy, strictness = policy_of(self.case.config), self.terms.strictness
        look = policy.compared[strictness]
        seen = differences(look, expected, taken.step, self._not_compared)
        if not taken.record:
            return seen
        twice = list(
            policy.adapter.reported_twice(self.script.ctx, expected, taken.record, strictness)
        )
        early = [one for one in twice if one.field.startswith("before.")]
        return (*early, *seen, *(one for one in twice if one not in early))

    def _differs(self, index: int, found: Step, seen: tuple[Difference, ...]) -> None:
        if self._is_known(index, None):
            return
        expected = self.script.steps[index]
        self.episode.finding = Finding(
            Kind.DIVERGENCE,
            index,
            seen[0].field,
            f"{seen[0].field} differs",
            differences=seen,
            followed=tuple(dict(_rules_followed(expected, found)).items()),
            broken=tuple(self._own.broken_by(found)),
            steps=self._steps_to(index),
        )

    def _failed(self, index: int, failure: Failure) -> None:
        """All steps agree, and then the system raised."""
        if not self._is_known(index, failure):
            self._found(Kind.CRASH, index, failure.cause, str(failure))

    def _ended(self) -> None:
        """All steps agree; is it over?"""
        script, index = self.script, self.episode.steps
        for _ in script:  # what the system did not ask for
            pass
        if script.error is not None:
            says = f"the reference stops: {script.error}"
            self._found(Kind.REFERENCE, index, script.error.rule, says)
        elif index < len(script.steps):
            raise DriverError("driver's answer", f"{index} steps", f"{len(script.steps)}")
        elif not script.over and self._is_expected(Kind.ENDLESS):
            self.episode.expected[Kind.ENDLESS] += 1
        elif not script.over:
            says = f"no end after {index} steps, nor in the reference"
            self._found(Kind.ENDLESS, index, "steps", says)
        else:
            self._look_for_what_is_held(index)

    def _look_for_what_is_held(self, index: int) -> None:
        """Whatever is left of requests that are all gone, in the system and not the reference."""
        after = self._taken[-1].step.after
        present = [one.id for one in after.present]
        blocks = set(after.pool.references) - set(self.script.steps[-1].after.pool.references)
        left = {"requests": present, "blocks": sorted(blocks)}
        held = [f"{name} {what}" for name, what in left.items() if what]
        if held and not self._own.is_driver:
            says = f"all requests have left, still there: {', '.join(held)}"
            self._found(Kind.HELD, index, "BLK-6", says)

    def _own_step(self, index: int, taken: Taken, action: Action) -> None:
        """What is wrong with the system's step by itself; the first finding counts."""
        episode, own = self.episode, self._own
        wrong = own.wrong(taken, action, judged=self.terms.judged)
        for cause, says, broken in wrong:
            if self._is_expected(cause):
                episode.expected[cause] += 1
            elif episode.finding is None:
                self._found(Kind.BROKEN_RULE, index, cause, says, broken)
        episode.judged, episode.on_device = own.judged, own.on_device
        episode.not_evaluated = own.not_evaluated

    def _is_expected(self, cause: str) -> bool:
        policy = policy_of(self.case.config)
        return policy.expected_reason(cause, self.case.config) is not None

    def _is_known(self, index: int, failure: Failure | None) -> bool:
        """True if this is a known difference, with which the episode then ends."""
        if not self._known:
            return False
        evidence = Evidence(
            config=self.case.config,
            actions=tuple(self.script.actions),
            expected=tuple(self.script.steps),
            found=tuple(one.step for one in self._taken),
            records=tuple(one.record for one in self._taken),
            index=index,
            failure=failure,
        )
        rows = self._known.items()
        self.episode.known = next((id_ for id_, row in rows if row.occurs(evidence)), None)
        return self.episode.known is not None

    def note_overdue(self) -> None:
        """Note each known difference that had to show in what was compared and did not."""
        script, episode = self.script, self.episode
        for id_, row in self._known.items():
            due = row.due(self.case.config, tuple(script.actions), tuple(script.steps))
            if due is not None and due < episode.steps:
                episode.overdue[id_] += 1

    def _found(
        self,
        kind: Kind,
        index: int,
        cause: str,
        says: str,
        broken: tuple[tuple[str, str], ...] = (),
    ) -> None:
        steps = self._steps_to(index)
        self.episode.finding = Finding(kind, index, cause, says, broken=broken, steps=steps)

    def _steps_to(self, index: int) -> tuple[Step, ...]:
        return tuple(self.script.steps[: index + 1])

    def _count(self, expected: Step, action: Action, index: int) -> None:
        counts, requests = self.episode.counts, self.script.ctx.requests
        labels = policy_of(self.case.config).labels
        early = sum(requests[one].end < requests[one].max_tokens for one in expected.finished)
        labels.add(counts, expected, early)
        counts["arrive"] += len(action.arrive)
        for one in action.abort:
            last = self.script.steps[index - 1].after if index else expected.before
            phase = "waiting" if one in action.arrive else labels.phase(last, one)
            counts[f"abort, {phase}"] += 1
        for one in action.abort_running:
            counts[f"abort while running, {labels.phase(expected.before, one)}"] += 1


def _rules_followed(expected: Step, found: Step) -> Iterator[tuple[str, str]]:
    """The rules that the reference followed where the system did otherwise, and in what.

    First the one that refused an admission, then that of the first event that only one of them
    had. Where the system reports no events, it may be any of the reference's.
    """
    if expected.refusal is not None and expected.refusal != found.refusal:
        yield expected.refusal, "refuses an admission of the reference"
    if not found.events:
        yield from ((one.rule, one.transition) for one in expected.events if one.rule)
        return
    ours = _first_of_its_own(expected, found)
    theirs = _first_of_its_own(found, expected)
    if ours is not None:
        yield ours.rule, f"the reference's {_named(ours)}"
    elif theirs is not None:
        yield theirs.rule, f"the reference has no {_named(theirs)}"


def _named(event: Event) -> str:
    return f"{event.transition} of {event.id or 'the batch'}"


def _first_of_its_own(step: Step, other: Step) -> Event | None:
    return next((event for event in step.events if event not in other.events), None)


# --- a system's own steps -------------------------------------------------------------------------

Wrong = tuple[str, str, tuple[tuple[str, str], ...]]
"""A cause, what it says, the rules that are broken with what was found."""


@define
class _OwnSteps:
    """The steps of a system by themselves: held against the rules and done on a device of ours."""

    system: System
    config: PolicyConfig
    ctx: Any
    is_driver: bool = field(init=False)
    on_device: int = field(default=0, init=False)
    _judge: Judge = field(init=False)
    _device: Any = field(init=False)  # None once it has refused a step

    def __attrs_post_init__(self) -> None:
        hello, policy = self.system.hello, policy_of(self.config)
        self.is_driver = not can(self.system, "events")
        adapter = policy.adapter if self.is_driver else None
        unreported = hello.unreported if self.is_driver else ()
        self._judge = Judge(self.ctx, adapter=adapter, unreported=unreported)
        make_device = policy.device if self.is_driver else None
        self._device = None if make_device is None else make_device(self.ctx)

    @property
    def judged(self) -> int:
        """Steps that were held against the rules."""
        return self._judge.judged

    @property
    def not_evaluated(self) -> dict[str, str]:
        """Rules that ask for what is not reported, with what that is."""
        return self._judge.not_evaluated

    def wrong(self, taken: Taken, action: Action, *, judged: bool) -> Iterator[Wrong]:
        """Each thing that is wrong with the next step."""
        if judged:
            leave = bool(action.abort_running)
            for one in self._judge.observe(taken.step, aborted_while_running=leave):
                yield one.rule.id, one.rule.sentence, ((one.rule.id, one.found),)
        else:
            self._judge.pass_over(taken.step)
        if self._device is not None:
            wrong = self._device.wrong(taken.step, taken.record)
            self.on_device = self._device.steps
            if wrong is not None:
                self._device = None
                yield *wrong, ()

    def broken_by(self, step: Step) -> Iterator[tuple[str, str]]:
        """Rules that a step breaks by itself, but for those that are known not to hold."""
        expected = policy_of(self.config).expected_reason
        for rule, found in self._judge.broken_by(step):
            if expected(rule, self.config) is None:
                yield rule, found


# --- without the reference ------------------------------------------------------------------------


@frozen
class Judged:
    """What became of a case that rules and device alone judge.

    `findings`: the first of each kind and cause. `not_evaluated`: rules that ask for what the
    system does not report, with what that is.
    """

    steps: int
    on_device: int
    findings: dict[tuple[Kind, str], Finding]
    not_evaluated: dict[str, str]


def judge_alone(system: System, case: Case, terms: Terms) -> Judged:
    """The system serves the case until no request is left.

    The reference only says when clients arrive and leave. So a release whose scheduling no variant
    of the reference describes can be judged, too, and one step that breaks a rule does not end the
    episode.

    Raises:
        WorkloadError: a request that could never be served.
        DriverError: a driver process does not speak the protocol.
    """
    script = script_for(system, case, terms)
    actions = [*script]
    last_arrival = max((at for at, action in enumerate(actions) if action.arrive), default=0)
    own = _OwnSteps(system, case.config, script.ctx)
    findings: dict[tuple[Kind, str], Finding] = {}
    index, over = 0, False
    for taken in system.play(case, _with_rest(case, actions)):
        if isinstance(taken, Failure):
            _note(findings, Finding(Kind.CRASH, index, taken.cause, str(taken)))
            over = True
            break
        action = actions[index] if index < len(actions) else Action()
        for cause, says, broken in chain(
            own.wrong(taken, action, judged=True), _wrong_totals(script.ctx, taken)
        ):
            _note(findings, Finding(Kind.BROKEN_RULE, index, cause, says, broken=broken))
        index += 1
        step = taken.step
        if step.kind == IDLE and step.after.is_idle and index > last_arrival + 1:
            over = True
            break
    if not over:
        says = f"a request still waits after {index} steps"
        _note(findings, Finding(Kind.ENDLESS, index, FOR_EVER, says))
    return Judged(index, own.on_device, findings, own.not_evaluated)


def _note(findings: dict[tuple[Kind, str], Finding], finding: Finding) -> None:
    findings.setdefault(finding.signature, finding)


def _with_rest(case: Case, actions: Sequence[Action]) -> Iterator[Action]:
    """The script's actions, then steps in which nothing happens: the system may be slower."""
    return chain(actions, repeat(Action(), most_steps(case) - len(actions)))


def _wrong_totals(ctx: Any, taken: Taken) -> Iterator[Wrong]:
    """Blocks that a scheduler counts otherwise than its own requests and pool add up to."""
    counts = {"blocks": taken.record.get("blocks", {})}
    before = {"blocks": taken.record.get("before", {}).get("blocks", {})}
    record: Json = {**counts, "before": before}
    twice = policy_of(ctx.config).adapter.reported_twice
    for one in twice(ctx, taken.step, record, Strictness.OBSERVABLE):
        name = one.field.removeprefix("before.")
        says = f"it counts {one.found}, its requests and its pool add up to {one.expected}"
        yield f"count: {name}", says, ()


def guard_of(failure: Failure) -> GuardError | None:
    """The guard of the reference at which a system of this process stopped, if it did."""
    error = failure.error if isinstance(failure, Raised) else None
    return error if isinstance(error, GuardError) else None
