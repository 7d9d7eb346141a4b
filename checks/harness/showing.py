"""Steps with the verdicts of the rules on them, as pages show them."""

from collections.abc import Iterable, Iterator
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

Found = tuple[tuple[str, str], ...]  # broken rules, each with what was found


def _each_once(broken: Iterable[Broken]) -> Found:
    """Each rule with what was found first, before the step or in it."""
    return tuple({one.rule.id: one.found for one in reversed([*broken])}.items())[::-1]


@define
class Shown:
    """Makes moments of steps, one after the other, each judged by every rule.

    `is_reported`: a driver or a file says so, and may contradict itself.
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
        """A state that arrivals and aborts left before step `index`."""
        verdicts = Verdicts(broken=found)
        return Moment(after=state, last=self._last, index=index, label=label, verdicts=verdicts)

    def _whole(self, step: Step) -> Step:
        return step

    def _broken(self, step: Step, leavers: bool) -> Found:
        adapter = evidence_of(self.ctx.config.policy).adapter
        if leavers and not adapter.rules_know_leavers:
            self.judge.pass_over(step)
            return self.broken_in(step.after)
        return _each_once(self.judge.observe(step))

    def broken_in(self, state: Any) -> Found:
        """The rules that a state breaks."""
        found = ((one.id, one.found_in_state(self.ctx, state)) for one in self.judge.rules)
        return tuple((rule, what) for rule, what in found if what is not None)

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
    """The same of the steps of a driver: fields may be left out, events are those that show."""

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
    """Of a step, and of the state that it left, by themselves."""
    found = ((one.id, one.found_of_step(ctx, step)) for one in rules)
    broken = tuple((rule, what) for rule, what in found if what is not None)
    return Verdicts(broken=broken, speaks=witnessed(ctx, rules, step))


def verdicts_of_change(
    ctx: SomeContext, rules: Iterable[AnyRule], before: Any, after: Any
) -> Verdicts:
    """Of what happens between two steps, and of the state that it left."""
    found = (
        (one.id, one.found_between(ctx, before, after) or one.found_in_state(ctx, after))
        for one in rules
    )
    return Verdicts(broken=tuple((rule, what) for rule, what in found if what is not None))


def witnessed(ctx: SomeContext, rules: Iterable[AnyRule], step: Step) -> tuple[str, ...]:
    """The rules of whose witness the step is one."""
    return tuple(one.id for one in rules if one.witness(ctx, step))


def moments_of(ctx: SomeContext, steps: Iterable[Step]) -> Iterator[tuple[Moment]]:
    """Frames of one side: the steps, judged."""
    shown = Shown(ctx)
    return ((shown.moment(step),) for step in steps)


def document_of_steps(
    ctx: SomeContext, steps: Iterable[Step], *, title: str, about: str = ""
) -> Json:
    """The document of a run of one scheduler."""
    return document_of(ctx, moments_of(ctx, steps), title=title, about=about)
