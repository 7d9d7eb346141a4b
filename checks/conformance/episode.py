"""One episode: the reference and a driver over the same script, step by step."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from attrs import define, field, frozen

from checks.conformance.counterpart import Counterpart, Device, Step, Teller
from checks.conformance.counterparts import counterpart_of
from checks.conformance.finding import Finding
from checks.conformance.judging import Judge
from checks.conformance.script import Script, script_of
from checks.fuzz.cases import Case
from checks.fuzz.compare import Difference, Strictness
from checks.fuzz.finding import Kind
from checks.fuzz.known import known_reason
from checks.harness.driver.protocol import (
    Action,
    DriverError,
    DriverFailure,
    Hello,
    Json,
    Played,
)
from checks.releases.difference import Evidence, KnownDifference
from checks.releases.known import known_for


class Lab(Protocol):
    """Where scripts are played: a driver, or what one told earlier."""

    @property
    def hello(self) -> Hello:
        """Who plays them."""
        ...

    def play(self, case: Case, actions: Sequence[Action]) -> Iterator[Played]:
        """The records of the steps in parts, one for each action, or as far as it came.

        What nobody asks for any more is not played.
        """
        ...


@frozen
class Terms:
    """How an episode is compared.

    `aborts_while_running`: aborts come while the model runs. `judged`: the driver's own steps are
    held against the registry, too.
    """

    strictness: Strictness = Strictness.EXACT
    aborts_while_running: bool = False
    judged: bool = True


@define
class Outcome:
    """What became of an episode.

    `steps`: compared; `judged`: held against the rules; `on_device`: whose tensors our device was
    given. `known`: the known difference with which it ended. `missed`: known differences that had
    to show and did not. `excused`: rules broken where it is known that they do not hold, by id.
    `untold`: rules that could not be judged, with what they ask for.
    """

    steps: int = 0
    judged: int = 0
    on_device: int = 0
    counts: Counter[str] = field(factory=Counter)
    finding: Finding | None = None
    known: str | None = None
    missed: Counter[str] = field(factory=Counter)
    excused: Counter[str] = field(factory=Counter)
    untold: dict[str, str] = field(factory=dict)
    found: list[Step] = field(factory=list, repr=False)
    records: list[Json] = field(factory=list, repr=False)


def run_episode(lab: Lab, case: Case, terms: Terms) -> Outcome:
    """Both serve the case until it is over or something differs.

    Raises:
        WorkloadError: a request that could never be served.
        DriverError: the driver does not speak the protocol.
    """
    while_running = terms.aborts_while_running and "abort_running" in lab.hello.abilities
    script = script_of(case, aborts_while_running=while_running)
    run = _Run(lab, case, terms, script)
    run.compare(lab.play(case, script.actions))
    run.look_for_what_was_due()
    return run.outcome


@define
class _Run:
    lab: Lab
    case: Case
    terms: Terms
    script: Script
    outcome: Outcome = field(factory=Outcome)
    _counterpart: Counterpart = field(init=False)
    _leaves_out: frozenset[str] = field(init=False)
    _judge: Judge = field(init=False)
    _device: Device | None = field(init=False)
    _known: dict[str, KnownDifference] = field(init=False)

    def __attrs_post_init__(self) -> None:
        hello, ctx = self.lab.hello, self.script.machine.ctx
        self._counterpart = counterpart_of(self.case.config)
        self._leaves_out = self._counterpart.fields.not_compared(hello.left_out)
        self._device = self._counterpart.device(ctx)
        self._judge = Judge(self._counterpart, ctx, hello.left_out)
        self._known = dict(known_for(hello.name, hello.release))

    def compare(self, parts: Iterable[Played]) -> None:
        """Step by step, up to the first that differs."""
        teller = self._counterpart.teller(self.script.machine.ctx)
        for played in parts:
            for record in played.records[: len(self.script.steps) - self.outcome.steps]:
                if not self._agrees(teller, record):
                    return
            if played.failure is not None:
                self._failed(played.failure)
                return
        self._ended()

    def _agrees(self, teller: Teller, record: Json) -> bool:
        """The driver's next step does what the reference's does, and no rule is broken."""
        outcome = self.outcome
        index = outcome.steps
        expected, action = self.script.steps[index], self.script.actions[index]
        found = step_of(teller, record, action, expected)
        outcome.found.append(found)
        outcome.records.append(record)
        seen = self._differences(expected, found, record)
        if seen:
            self._differs(index, seen)
            return False
        outcome.steps += 1
        self._count(expected, action, index)
        self._judged(found, action)
        self._on_device(index, record, found)
        return outcome.finding is None

    def _differences(self, expected: Step, found: Step, record: Json) -> tuple[Difference, ...]:
        ctx, strictness = self.script.machine.ctx, self.terms.strictness
        return self._counterpart.differences(
            ctx, expected, found, record, strictness, self._leaves_out
        )

    def _differs(self, index: int, seen: tuple[Difference, ...]) -> None:
        known = self._recognised(index, None)
        if known is not None:
            self.outcome.known = known
            return
        expected = self.script.steps[index]
        rules = [(event.rule, event.transition) for event in expected.events if event.rule]
        if expected.refusal is not None:
            rules.insert(0, (expected.refusal, "refuses an admission"))
        says = f"{seen[0].field} differs"
        self._found(Kind.DIVERGENCE, index, seen[0].field, says, seen, tuple(dict(rules).items()))

    def _failed(self, failure: DriverFailure) -> None:
        """All records agree, and then the driver raised."""
        index = self.outcome.steps
        known = self._recognised(index, failure)
        if known is not None:
            self.outcome.known = known
            return
        self._found(Kind.CRASH, index, failure.cause, str(failure))

    def _ended(self) -> None:
        """All records agree; are there as many as there should be?"""
        index = self.outcome.steps
        if index < len(self.script.steps):
            raise DriverError("driver's answer", f"{index} steps", f"{len(self.script.steps)}")
        elif not self.script.over and known_reason(Kind.ENDLESS, self.case.config) is not None:
            self.outcome.excused[Kind.ENDLESS] += 1
        elif not self.script.over:
            says = f"no end after {index} steps, nor in the reference"
            self._found(Kind.ENDLESS, index, "steps", says)

    def _judged(self, found: Step, action: Action) -> None:
        if not self.terms.judged:
            return
        self.outcome.judged += 1
        for broken in self._judge.observe(found, aborted_while_running=bool(action.abort_running)):
            if known_reason(broken.rule.id, self.case.config) is not None:
                self.outcome.excused[broken.rule.id] += 1
                continue
            told = ((broken.rule.id, broken.found),)
            says = broken.rule.sentence
            self._found(Kind.BROKEN_RULE, found.index, broken.rule.id, says, rules=told)
            return
        self.outcome.untold = self._judge.untold

    def _on_device(self, index: int, record: Json, found: Step) -> None:
        """The step on a device of ours, up to the first that is known to be wrong there."""
        if self._device is None:
            return
        wrong = self._device.wrong(record, found)
        self.outcome.on_device = self._device.steps
        if wrong is None:
            return
        if known_reason(wrong[0], self.case.config) is not None:
            self.outcome.excused[wrong[0]] += 1
            self._device = None
        elif self.outcome.finding is None:
            self._found(Kind.BROKEN_RULE, index, *wrong)

    def _recognised(self, index: int, failure: DriverFailure | None) -> str | None:
        """The known difference that this is, or None."""
        evidence = Evidence(
            config=self.case.config,
            actions=self.script.actions,
            expected=self.script.steps,
            found=tuple(self.outcome.found),
            records=tuple(self.outcome.records),
            index=index,
            failure=failure,
        )
        return next((id_ for id_, row in self._known.items() if row.occurs(evidence)), None)

    def look_for_what_was_due(self) -> None:
        """Note each known difference that had to show in what was compared and did not."""
        outcome = self.outcome
        for id_, row in self._known.items():
            due = row.due(self.case.config, self.script.actions, self.script.steps)
            if due is not None and due < outcome.steps:
                outcome.missed[id_] += 1

    def _found(
        self,
        kind: Kind,
        index: int,
        cause: str,
        says: str,
        seen: tuple[Difference, ...] = (),
        rules: tuple[tuple[str, str], ...] = (),
    ) -> None:
        steps = self.script.steps[: index + 1]
        self.outcome.finding = Finding(kind, index, cause, says, seen, rules, steps)

    def _count(self, expected: Step, action: Action, index: int) -> None:
        counts, requests = self.outcome.counts, self.script.machine.ctx.requests
        kinds = self._counterpart.counts
        early = sum(requests[one].end < requests[one].max_tokens for one in expected.finished)
        kinds.add(counts, expected, early)
        counts["arrive"] += len(action.arrive)
        for one in action.abort:
            last = self.script.steps[index - 1].after if index else expected.before
            phase = "waiting" if one in action.arrive else kinds.phase(last, one)
            counts[f"abort, {phase}"] += 1
        for one in action.abort_running:
            counts[f"abort while running, {kinds.phase(expected.before, one)}"] += 1


def step_of(teller: Teller, record: Json, action: Action, expected: Step) -> Step:
    """The record as a step.

    Raises:
        DriverError: the record lacks a field, or has one of another form.
    """
    try:
        return teller.step(record, action, expected.index, expected.time)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        told = f"{type(error).__name__} {error} in {str(record)[:300]}"
        allowed = "the fields that the chapter on drivers lists"
        raise DriverError(f"driver's record of step {expected.index}", told, allowed) from None
