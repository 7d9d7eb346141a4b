"""Step-by-step comparison of a system with the reference on the same case.

An episode ends at the first step that differs, breaks a rule or is refused by the simulated device,
and at a known difference.
"""

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from attrs import define, field, frozen

from checks.harness.case import AS_USUAL, Case, with_all_drafts, without
from checks.harness.comparing import Difference, Strictness, differences
from checks.harness.coverage import event_kinds, event_pairs
from checks.harness.difference import Divergence, KnownDifference
from checks.harness.driver.faults import play
from checks.harness.driver.protocol import DriverError
from checks.harness.finding import Episode, Finding, Kind
from checks.harness.judging import judgeable
from checks.harness.own_steps import OwnSteps, nearest
from checks.harness.paths import AnyScript, path_script
from checks.harness.policy import AnyEvidence, evidence_of
from checks.harness.rules_only import judged_by_rules
from checks.harness.script import Scope, Script
from checks.harness.situations import profiles
from checks.harness.system import Action, Failure, Step, System, Taken
from checks.words import counted
from spec.core.records import Event

# --- terms ----------------------------------------------------------------------------------------


@frozen
class Terms:
    """How a system is compared.

    `aborts_while_running`: clients abort while the model runs, if the system supports it.
    `ends_named`: actions name the requests that end, if the system supports it. `judged`: the rules
    judge the system's own steps. `rules_only`: nothing is compared, see
    `checks.harness.rules_only`. `most_steps`: the most steps that are compared; None: no bound.
    """

    strictness: Strictness = Strictness.EXACT
    aborts_while_running: bool = False
    ends_named: bool = False
    judged: bool = True
    rules_only: bool = False
    most_steps: int | None = None


def can(system: System, ability: str) -> bool:
    """True if the system declares this ability."""
    return ability in system.hello.abilities


# --- one episode ----------------------------------------------------------------------------------


def compare(system: System, case: Case, terms: Terms, script: AnyScript | None = None) -> Episode:
    """Serve the case with both until its end or the first finding.

    `script`: of this case and these terms, if it is known.

    Raises:
        WorkloadError: a request can never be served.
        DriverError: a driver process violates the protocol, or fails itself.
    """
    case = within_abilities(system, case)
    script = script or script_of(system, case, terms)
    if terms.rules_only:
        return judged_by_rules(system, script)
    run = _Comparison(system, case, terms, script)
    run.compare()
    run.note_overdue()
    return run.episode


def within_abilities(system: System, case: Case) -> Case:
    """The case without what the system cannot be told."""
    if case.path:
        return case
    if not can(system, "fewer_drafts"):
        case = with_all_drafts(case)
    for ability in AS_USUAL:
        if not can(system, ability):
            case = without(case, ability)
    return case


def script_of(system: System, case: Case, terms: Terms) -> AnyScript:
    """The actions of the case that the system supports, and the reference's steps."""
    if case.path:
        return path_script(case)
    case = within_abilities(system, case)
    while_running = terms.aborts_while_running and can(system, "abort_running")
    ends_named = terms.ends_named and can(system, "ends")
    bound = None if terms.rules_only else terms.most_steps
    return Script(case, Scope(while_running, can(system, "abort_gone"), ends_named, bound))


@define
class _Comparison:
    system: System
    case: Case
    terms: Terms
    script: AnyScript
    episode: Episode = field(factory=Episode)
    _evidence: AnyEvidence = field(init=False)
    _own: OwnSteps = field(init=False)
    _not_compared: frozenset[str] = field(init=False)
    _known: list[KnownDifference] = field(init=False)
    _last_events: set[tuple[str, str]] = field(factory=set, init=False)  # around the last step

    def __attrs_post_init__(self) -> None:
        hello, evidence = self.system.hello, evidence_of(self.case.config.policy)
        self._evidence = evidence
        self._own = OwnSteps(self.system, self.case.config, self.script.ctx, self.episode)
        # The adapter says what a driver leaves out; a system in this process names the fields.
        fields = evidence.adapter.fields if self._own.is_driver else None
        self._not_compared = (
            hello.unreported if fields is None else fields.not_compared(hello.unreported)
        )
        self._known = evidence.release_differences(hello)

    def compare(self) -> None:
        """Compare step by step, up to the first finding."""
        script, index = self.script, 0
        for taken in play(self.system, self.case, script):
            if isinstance(taken, Failure):
                self._failed(index, taken)
                return
            # A recording may have more steps, made with a higher bound on them.
            if index < len(script.steps):
                script.taken.append(taken)
                if not self._agrees(index, taken):
                    return
                index += 1
        self._ended()

    def _agrees(self, index: int, taken: Taken) -> bool:
        """True if the system's step agrees with the reference's and has no other error."""
        expected, action = self.script.steps[index], self.script.actions[index]
        if taken is action.earlier:
            self.episode.steps += 1
            self._count(expected, action, index)
            self._own.pass_over(taken)
            return True
        seen = self._differences(expected, taken)
        if seen:
            self._differs(index, taken.step, seen)
            return False
        self.episode.steps += 1
        self._count(expected, action, index)
        self._own_step(index, taken, action)
        if self.script.is_part:
            self.script.taken[-1] = self._own.with_device(taken)
        return self.episode.finding is None

    def _differences(self, expected: Step, taken: Taken) -> tuple[Difference, ...]:
        strictness, ctx = self.terms.strictness, self.script.ctx
        return step_differences(
            self._evidence, ctx, strictness, expected, taken, self._not_compared
        )

    def _differs(self, index: int, found: Step, seen: tuple[Difference, ...]) -> None:
        if self._is_known(index, None, seen):
            return
        expected = self.script.steps[index]
        finding = divergence_finding(
            self._evidence, self.case.config, expected, found, seen, self._reference_steps(index)
        )
        self.episode.note(finding)

    def _failed(self, index: int, failure: Failure) -> None:
        """Note that the system raised in step `index`, with the rules of the reference's step."""
        if self._is_known(index, failure):
            return
        followed: dict[str, str] = {}
        for step in self.script.steps[index : index + 1]:
            if step.refusal is not None:
                followed[step.refusal] = "refuses what is next, in this step of the reference"
            for event in step.events:
                if event.rule:
                    followed[event.rule] = _of(event)
        finding = Finding(
            Kind.CRASH,
            index,
            failure.cause,
            str(failure),
            followed=tuple(followed.items()),
            steps=self._reference_steps(index),
        )
        self.episode.note(finding)

    def _ended(self) -> None:
        """All steps agree: note how the episode ended."""
        script, index = self.script, self.episode.steps
        for _ in script:  # actions that the system did not take
            pass
        if script.error is not None:
            says = f"the reference stops: {script.error}"
            self._found(Kind.REFERENCE, index, script.error.rule, says)
        elif index < len(script.steps):
            raise DriverError("driver's answer", f"{index} steps", f"{len(script.steps)}")
        elif not script.over and (script.is_part or index == self.terms.most_steps):
            return
        elif not script.over and self._is_expected(Kind.ENDLESS):
            self.episode.expected[Kind.ENDLESS] += 1
        elif not script.over:
            says = f"no end after {counted(index, 'step')}, nor in the reference"
            self._found(Kind.ENDLESS, index, "steps", says)
        else:
            self._note_leaks(index)

    def _note_leaks(self, index: int) -> None:
        """Note requests and blocks that only the system still holds after all requests left."""
        after, expected = self.script.taken[-1].step.after, self.script.steps[-1].after
        present = {row.id for row in after.present} - {row.id for row in expected.present}
        blocks = set(after.pool.references) - set(expected.pool.references)
        left = {"requests": sorted(present), "blocks": sorted(blocks)}
        held = [f"{name} {what}" for name, what in left.items() if what]
        if held and not self._own.is_driver:
            says = f"all requests have left, still there: {', '.join(held)}"
            self._found(Kind.HELD, index, "BLK-6", says)

    def _own_step(self, index: int, taken: Taken, action: Action) -> None:
        """Note the error in the system's own step that is nearest to the cause."""
        unexpected = []
        for wrong in self._own.wrong(taken, action, judged=self._judges(index)):
            if self._is_expected(wrong[0], index):
                self.episode.expected[wrong[0]] += 1
            else:
                unexpected.append(wrong)
        if unexpected:
            self._found(Kind.BROKEN_RULE, index, *nearest(unexpected, itemgetter(0)))

    def _judges(self, index: int) -> bool:
        judged = self.script.judged
        return self.terms.judged and (judged is None or index in judged)

    def _is_expected(self, cause: str, index: int | None = None) -> bool:
        """True if this violation is expected in the reference's step `index`, or in any step."""
        steps = self.script.steps
        step = None if index is None or index >= len(steps) else steps[index]
        return self._evidence.expected_reason(cause, self.case.config, step) is not None

    def _is_known(
        self, index: int, failure: Failure | None, seen: tuple[Difference, ...] = ()
    ) -> bool:
        """True if this is a known difference, with which the episode then ends."""
        if not self._known:
            return False
        divergence = Divergence(
            config=self.case.config,
            actions=tuple(self.script.actions),
            expected=tuple(self.script.steps),
            found=tuple(taken.step for taken in self.script.taken),
            records=tuple(taken.record for taken in self.script.taken),
            index=index,
            failure=failure,
            differing=seen,
        )
        self.episode.known = next((row.id for row in self._known if row.occurs(divergence)), None)
        return self.episode.known is not None

    def note_overdue(self) -> None:
        """Note each known difference that was due in the compared steps and did not show."""
        script, episode = self.script, self.episode
        for row in self._known:
            due = row.due(self.case.config, tuple(script.actions), tuple(script.steps))
            if due is not None and due < episode.steps:
                episode.overdue[row.id] += 1

    def _found(
        self,
        kind: Kind,
        index: int,
        cause: str,
        says: str,
        broken: tuple[tuple[str, str], ...] = (),
    ) -> None:
        steps = self._reference_steps(index)
        self.episode.note(Finding(kind, index, cause, says, broken=broken, steps=steps))

    def _reference_steps(self, index: int) -> tuple[Step, ...]:
        return tuple(self.script.steps[: index + 1])

    def _count(self, expected: Step, action: Action, index: int) -> None:
        counts, requests = self.episode.counts, self.script.ctx.requests
        labels = self._evidence.labels
        early = sum(
            requests[request_id].end < requests[request_id].max_tokens
            for request_id in expected.finished
        )
        labels.add(counts, expected, early)
        counts["arrive"] += len(action.arrive)
        last = self.script.steps[index - 1].after if index else expected.before
        for request_id in action.abort:
            phase = "waiting" if request_id in action.arrive else labels.phase(last, request_id)
            counts[f"abort, {phase}"] += 1
        for request_id in action.abort_running:
            counts[f"abort while running, {labels.phase(expected.before, request_id)}"] += 1
        self._count_pairs(action, expected)
        reached = profiles(labels.situations, self.script.ctx, action, last, expected)
        self.episode.profiles.update(reached)

    def _count_pairs(self, action: Action, step: Step) -> None:
        """Count pairs: an event of this step or the last one, and a transition of this step."""
        events = event_kinds(action, step, self.script.ctx.requests)
        self.episode.pairs.update(event_pairs(events | self._last_events, step))
        self._last_events = events


def step_differences(
    evidence: AnyEvidence,
    ctx: Any,
    strictness: Strictness,
    expected: Step,
    taken: Taken,
    not_compared: frozenset[str],
) -> tuple[Difference, ...]:
    """The fields in which a system's step differs from the reference's: states before it first."""
    look = evidence.compared[strictness]
    seen = differences(look, expected, taken.step, not_compared)
    if not taken.record:
        return seen
    twice = list(evidence.adapter.reported_twice(ctx, expected, taken.record, strictness))
    early = [difference for difference in twice if difference.field.startswith("before.")]
    return (*early, *seen, *(difference for difference in twice if difference not in early))


def divergence_finding(
    evidence: AnyEvidence,
    config: Any,
    expected: Step,
    found: Step,
    seen: tuple[Difference, ...],
    steps: tuple[Step, ...],
) -> Finding:
    """The finding of a step that differs from the reference's; `steps`: the reference's so far."""
    return Finding(
        Kind.DIVERGENCE,
        found.index,
        seen[0].field,
        f"{evidence.adapter.in_record(seen[0].field)} differs from the specification"
        f"{_not_admitted(evidence, config, expected, found)}",
        differences=seen,
        followed=tuple(dict(_rules_followed(expected, found)).items()),
        steps=steps,
    )


def _not_admitted(evidence: AnyEvidence, config: Any, expected: Step, found: Step) -> str:
    """If only the reference admits a request: its id and the rules that could refuse it."""
    waited = {row.id for row in expected.before.waiting}
    admitted = [event.id for event in expected.events if event.transition == "admit"]
    if not admitted or not waited.isdisjoint(found.scheduled):
        return ""
    if found.refusal is not None:
        return f": the reference admits {admitted[0]}, which is refused by {found.refusal}"
    applied = {rule.id for rule in judgeable(config)}
    rules = [rule for rule in evidence.labels.refusals if rule in applied]
    could = f", which could be refused by {', '.join(rules)}" if rules else ""
    return f": only the reference admits {admitted[0]}{could}"


def _rules_followed(expected: Step, found: Step) -> Iterator[tuple[str, str]]:
    """The rules behind the reference's decisions in a step that differs, and those decisions.

    First the rule that refused an admission, then the rule of the first event that only one side
    has. If the system reports no events: the rules of all events of the reference.
    """
    if expected.refusal is not None and expected.refusal != found.refusal:
        yield expected.refusal, "refuses an admission of the reference"
    if found.refusal is not None and expected.refusal is None:
        yield found.refusal, "refuses what the reference admits"
    if not found.events:
        yield from ((event.rule, _of(event)) for event in expected.events if event.rule)
        return
    for step, other, says in (
        (expected, found, ""),
        (found, expected, "the reference has no "),
    ):
        own = next((event for event in step.events if event not in other.events), None)
        if own is not None:
            if own.rule:  # a driver's events have none
                yield own.rule, f"{says}{_of(own)}"
            return


def _of(event: Event) -> str:
    return f"{event.transition} of {event.id or 'the batch'}"
