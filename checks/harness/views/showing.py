"""Steps with the verdicts of the rules, as the pages show them."""

from collections.abc import Iterable
from typing import Any

from attrs import define, evolve, field

from checks.export.pages.document import document_of
from checks.export.pages.situation import Json, Moment, Verdicts
from checks.harness.adapter import CONTRADICTS, Adapter
from checks.harness.judging import Broken, Judge
from checks.harness.policy import evidence_of
from checks.harness.system import Step, System
from spec.core.records import SomeContext
from spec.core.rule import AnyRule

Found = tuple[tuple[str, str], ...]  # broken rules, each with its violation


def _each_once(broken: Iterable[Broken]) -> Found:
    """Each broken rule with its first violation, in order."""
    return tuple({violation.rule.id: violation.found for violation in reversed([*broken])}.items())[
        ::-1
    ]


@define
class Shown:
    """Turns steps into moments in order, each judged by every rule.

    `is_reported`: a driver or a file reported the steps, and they may contradict themselves.
    """

    ctx: SomeContext
    is_reported: bool = False
    judge: Judge = field(init=False)
    _last: Any = None

    def __attrs_post_init__(self) -> None:
        self.judge = Judge(self.ctx, trusted=not self.is_reported)

    def moment(self, step: Step, *, aborted_while_running: bool = False) -> Moment:
        """The next step, judged as `Judge.observe` does."""
        step = self._whole(step)
        verdicts = self._verdicts(self._broken(step, aborted_while_running), step)
        last, self._last = self._last, step.after
        return Moment(
            after=step.after,
            step=step,
            last=last,
            verdicts=verdicts,
            is_reported=self.is_reported,
        )

    def between(self, state: Any, index: int, label: str, found: Found = ()) -> Moment:
        """The moment after arrivals and aborts before step `index`."""
        verdicts = Verdicts(broken=found)
        return Moment(after=state, last=self._last, index=index, label=label, verdicts=verdicts)

    def _whole(self, step: Step) -> Step:
        return step

    def _broken(self, step: Step, leavers: bool) -> Found:
        adapter = evidence_of(self.ctx.config.policy).adapter
        if leavers and not adapter.rules_know_leavers:
            self.judge.pass_over(step)
            return self.broken_rules(step.after)
        return _each_once(self.judge.observe(step))

    def broken_rules(self, state: Any) -> Found:
        """The rules that a state breaks."""
        violations = ((rule.id, rule.found_in_state(self.ctx, state)) for rule in self.judge.rules)
        return tuple((rule, what) for rule, what in violations if what is not None)

    def _verdicts(self, found: Found, step: Step) -> Verdicts:
        try:
            speaks = witnessed(self.ctx, self.judge.rules, step)
        except CONTRADICTS:
            if not self.is_reported:
                raise
            speaks = ()
        return Verdicts(broken=found, speaks=speaks)


@define
class ShownRelease(Shown):
    """Turns a driver's steps into moments; unreported fields are not judged, events inferred."""

    is_reported: bool = True
    system: System = field(kw_only=True)
    _adapter: Adapter = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._adapter = evidence_of(self.ctx.config.policy).adapter
        hello = self.system.hello
        self.judge = Judge(self.ctx, None, self._adapter, hello.unreported, hello.abilities)

    def _whole(self, step: Step) -> Step:
        try:
            return evolve(step, events=self._adapter.inferred_events(step, self.ctx.config))
        except CONTRADICTS:
            return step

    def _broken(self, step: Step, leavers: bool) -> Found:
        return _each_once(self.judge.observe(step, aborted_while_running=leavers))

    def _verdicts(self, found: Found, step: Step) -> Verdicts:
        return Verdicts(broken=found, unjudged=tuple(self.judge.not_evaluated))


def verdicts_of_step(ctx: SomeContext, rules: Iterable[AnyRule], step: Step) -> Verdicts:
    """The verdicts on one step and its final state."""
    violations = ((rule.id, rule.found_of_step(ctx, step)) for rule in rules)
    broken = tuple((rule, what) for rule, what in violations if what is not None)
    return Verdicts(broken=broken, speaks=witnessed(ctx, rules, step))


def verdicts_of_change(
    ctx: SomeContext, rules: Iterable[AnyRule], before: Any, after: Any
) -> Verdicts:
    """The verdicts on an arrival or abort and on the state after it."""
    violations = (
        (rule.id, rule.found_between(ctx, before, after) or rule.found_in_state(ctx, after))
        for rule in rules
    )
    return Verdicts(broken=tuple((rule, what) for rule, what in violations if what is not None))


def witnessed(ctx: SomeContext, rules: Iterable[AnyRule], step: Step) -> tuple[str, ...]:
    """The rules that the step witnesses."""
    return tuple(rule.id for rule in rules if rule.witness(ctx, step))


def document_of_steps(
    ctx: SomeContext, steps: Iterable[Step], *, title: str, about: str = ""
) -> Json:
    """The document of a run of one scheduler."""
    shown = Shown(ctx)
    return document_of(ctx, ((shown.moment(step),) for step in steps), title=title, about=about)
