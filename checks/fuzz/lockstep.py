"""One case, the reference and a target side by side, until both are idle."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from attrs import define, field, frozen

from checks.export.trace.line import Past
from checks.fuzz.cases import Case
from checks.fuzz.compare import Strictness, differences
from checks.fuzz.counts import count_step, phase_of
from checks.fuzz.finding import Episode, Finding, Kind
from checks.fuzz.guarded import Guarded, TargetRaisedError
from checks.fuzz.known import known_reason
from checks.fuzz.reference import ReferenceTarget, reference_target
from checks.fuzz.target import Subject, Target
from checks.harness.running import Clients, Judge, step_time
from checks.policies.spyre.codec import CODEC
from reference.core.guards import GuardError
from spec.core.records import Event
from spec.spyre.padding import chunk_count
from spec.spyre.records import Context, Step
from spec.spyre.rules import applicable
from spec.spyre.state import State

_PATIENCE = 10  # times the steps that all requests would need one after the other


@frozen
class Terms:
    """How a target is compared: how strictly, and whether its own steps are judged as well."""

    strictness: Strictness = Strictness.EXACT
    judged: bool = False


def run_case(subject: Subject, case: Case, terms: Terms | None = None) -> Episode:
    """Both serve the case until it is over or something is found.

    After the last request has left, one more step is compared: it must be idle.

    Raises:
        WorkloadError: a request that could never be served.
    """
    reference = reference_target(case.config, case.requests)
    run = _Run(subject, case, terms or Terms(), reference)
    finding = run.finding()
    return Episode(len(run.steps), run.counts, finding, run.known)


@define
class _Run:
    subject: Subject
    case: Case
    terms: Terms
    reference: ReferenceTarget
    counts: Counter[str] = field(factory=Counter)
    known: Counter[str] = field(factory=Counter)
    steps: list[Step] = field(factory=list)
    _past: Past = field(factory=Past)
    _index: int = 0
    _left: State = field(init=False)  # by the target's step before
    _judge: Judge | None = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._judge = Judge(self.ctx, keep=1_000) if self.terms.judged else None
        self._left = self.reference.state

    @property
    def ctx(self) -> Context:
        """What rules look up."""
        return self.reference.machine.ctx

    def finding(self) -> Finding | None:
        """What is wrong first, or nothing."""
        try:
            return self._first_finding()
        except TargetRaisedError as error:
            return self._found(Kind.CRASH, error.type_name, str(error))
        except GuardError as error:
            return self._found(Kind.REFERENCE, error.rule, f"the reference stops: {error}")

    def _first_finding(self) -> Finding | None:
        target = Guarded(self.subject, self.case.config, self.case.requests)
        clients = Clients(self.case.requests)
        time = 0.0
        for index in range(_most_steps(self.case)):
            self._index = index
            self._between_steps(target, clients, index, time)
            over = not clients.pending and self.reference.state.is_idle
            expected = self.reference.step(index, time)
            self.steps.append(expected)
            found = target.step(index, time)
            wrong = self._difference(expected, found) or self._broken_rule(found)
            if wrong is not None:
                return wrong
            self._note(expected)
            self._left = found.after
            if over:
                return self._held(found.after)
            time += step_time(self.case.config, expected.kind)
        return self._found(Kind.ENDLESS, "steps", f"no end after {len(self.steps)} steps")

    def _between_steps(self, target: Target, clients: Clients, index: int, time: float) -> None:
        for newcomer in clients.arriving(index, time):
            self.counts["arrive"] += 1
            self.reference.arrive(newcomer)
            target.arrive(newcomer)
        for leaver in clients.leaving(index):
            self.counts[f"abort, {phase_of(self.reference.state, leaver)}"] += 1
            self.reference.abort(leaver)
            target.abort(leaver)

    def _note(self, step: Step) -> None:
        self._past = CODEC.past_after(step, self._past)
        requests = self.ctx.requests
        early = sum(requests[one].end < requests[one].max_tokens for one in step.finished)
        count_step(self.counts, step, early)

    def _difference(self, expected: Step, found: Step) -> Finding | None:
        strictness, leaves_out = self.terms.strictness, self.subject.leaves_out
        seen = differences(expected, found, strictness, self._past, leaves_out)
        if not seen:
            return None
        return self._found(
            Kind.DIVERGENCE,
            seen[0].field,
            f"{seen[0].field} differs",
            differences=seen,
            followed=_rule_followed(expected, found),
            broken=tuple(_rules_broken(self.ctx, self._left, found)),
        )

    def _broken_rule(self, found: Step) -> Finding | None:
        """The first rule that the step breaks, unless it is known not to hold here."""
        if self._judge is None:
            return None
        self._judge.observe(found)
        broken, self._judge.broken = self._judge.broken, []
        for one in broken:
            if known_reason(one.rule.id, self.case.config) is None:
                told = ((one.rule.id, one.found),)
                return self._found(Kind.BROKEN_RULE, one.rule.id, one.rule.sentence, broken=told)
            self.known[one.rule.id] += 1
        return None

    def _held(self, after: State) -> Finding | None:
        """Whatever is left of requests that are all gone."""
        left = {
            "requests": [one.id for one in after.present],
            "blocks": sorted(after.pool.references),
        }
        told = [f"{name} {what}" for name, what in left.items() if what]
        says = f"everybody has left, still there: {', '.join(told)}"
        return self._found(Kind.HELD, "BLK-6", says) if told else None

    def _found(self, kind: Kind, cause: str, says: str, **details: Any) -> Finding:
        return Finding(kind, self._index, cause, says, steps=tuple(self.steps), **details)


def _most_steps(case: Case) -> int:
    """The bound on steps: no scheduler that makes progress needs as many."""
    chunk = case.config.chunk_size
    work = sum(chunk_count(one.prompt_len, chunk) + one.max_tokens for one in case.requests)
    return max(one.arrival for one in case.requests) + _PATIENCE * int(work) + 1


def _rule_followed(expected: Step, found: Step) -> tuple[str, str] | None:
    """The rule that the reference followed where the target did otherwise.

    It is the one that refused a prefill, else that of the first event that only one of them had.
    """
    if expected.refusal is not None and expected.refusal != found.refusal:
        return expected.refusal, "it keeps the reference from a prefill step"
    ours, theirs = _first_of_its_own(expected, found), _first_of_its_own(found, expected)
    if ours is not None:
        return ours.rule, f"the reference's {_told(ours)}"
    return None if theirs is None else (theirs.rule, f"the reference has no {_told(theirs)}")


def _told(event: Event) -> str:
    return f"{event.transition} of {event.id or 'the batch'}"


def _first_of_its_own(step: Step, other: Step) -> Event | None:
    return next((event for event in step.events if event not in other.events), None)


def _rules_broken(ctx: Context, left: State, found: Step) -> Iterator[tuple[str, str]]:
    """Rules that the target's step breaks by itself, or what came before it since `left`."""
    for rule in applicable(ctx.config):
        if known_reason(rule.id, ctx.config) is None:
            try:
                broken = rule.found_between(ctx, left, found.before)
                broken = broken or rule.found_of_step(ctx, found)
            except Exception as error:  # a step may be too broken to be judged
                broken = f"cannot be judged: {type(error).__name__}: {error}"
            if broken is not None:
                yield rule.id, broken
