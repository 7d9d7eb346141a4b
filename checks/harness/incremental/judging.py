"""A judge of long runs: most rules are shown only what a step changed.

Each policy has a table of looks by rule. If a rule finds nothing in the part that its look shows it
holds of the whole, given that it held before; if it finds something the whole is judged, and that
is what counts.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from attrs import define, evolve, field

from checks.harness.incremental.course import Course, States
from checks.harness.incremental.looks import OF_BLOCKS, Look, Looks
from checks.harness.judging import Ask, Broken, Judge
from checks.harness.policy import evidence_of
from checks.harness.system import Step
from spec.core.records import StepRecord
from spec.core.rule import AnyRule, Rule


def judge_of_run(ctx: Any, rules: Iterable[AnyRule] | None = None) -> Judge:
    """A judge for the steps of a long run, incremental where the policy has looks."""
    looks = evidence_of(ctx.config.policy).looks
    return Judge(ctx, rules) if looks is None else IncrementalJudge(ctx, looks(), rules)


class IncrementalJudge(Judge):
    """Judges the steps of a long run by what each of them changed."""

    def __init__(self, ctx: Any, looks: Looks, rules: Iterable[AnyRule] | None = None) -> None:
        """`rules`: by default all that apply."""
        super().__init__(ctx, rules)
        self._looks = looks
        self._broken = set[str]()  # rules about states that the last state breaks

    def observe_all(self, steps: Iterable[Step]) -> Iterator[Broken]:
        """The violations in the next steps; the state before them is judged as a whole."""
        if self._left is not None:
            deque(self._each(self._in_state, Rule.found_in_state, self._left), maxlen=0)
        return super().observe_all(steps)

    def _each(
        self, rules: Iterable[AnyRule], ask: Ask, given: Any
    ) -> Iterator[tuple[AnyRule, str]]:
        """The broken rules; rules with a look are first judged on a part of the step.

        While a rule about states is broken, all rules are judged on the whole step.
        """
        is_whole = bool(self._broken) or not isinstance(given, (tuple, StepRecord))
        found = super()._each(rules, ask, given) if is_whole else self._by_parts(rules, ask, given)
        broken = set[str]()
        for rule, what in found:
            if rule.in_state:
                broken.add(rule.id)
            yield rule, what
        self._broken = broken

    def _by_parts(
        self, rules: Iterable[AnyRule], ask: Ask, given: Any
    ) -> Iterator[tuple[AnyRule, str]]:
        by_rule, parts = self._looks.by_rule, self._parts_of(given)
        for rule in rules:
            look = by_rule.get(rule.id)
            if look is None and rule.given is not None:
                found = parts.violation(rule)
            elif look is not None and parts.violation(rule, look) is None:
                continue
            else:
                found = ask(rule, self.ctx, given)
            if found is not None:
                yield rule, found

    def _parts_of(self, whole: Any) -> "_Parts":
        names = self._looks.places.states
        if isinstance(whole, tuple):
            course = Course(self.ctx.config, self._looks.places, whole)
        else:
            states = tuple(getattr(whole, name) for name in names)
            course = Course(self.ctx.config, self._looks.places, states, whole.events)
        return _Parts(self.ctx, whole, course)


@define
class _Parts:
    """The parts of a step, or of a change between two steps, that looks show.

    Each part is made once for all rules, and so are the arguments of the rules' predicates.
    """

    ctx: Any
    whole: Any
    course: Course
    _states: dict[Look, States | None] = field(factory=dict, init=False)
    _steps: dict[Look, Any] = field(factory=dict, init=False)
    _given: dict[tuple[Look | None, Any], Any] = field(factory=dict, init=False)

    def violation(self, rule: AnyRule, look: Look | None = None) -> str | None:
        """The violation of the rule in the part that the look shows; by default in the whole."""
        if look is None:
            return self._violation_of_step(rule, look, self.whole)
        if look not in self._states:
            self._states[look] = look(self.course)
        states = self._states[look]
        if states is None:
            return None
        if rule.in_state:
            return rule.found_in_state(self.ctx, states[-1])
        if rule.of_change:
            return rule.found_between(self.ctx, *states)
        if look not in self._steps:
            self._steps[look] = self._step(look, states)
        return self._violation_of_step(rule, look, self._steps[look])

    def _violation_of_step(self, rule: AnyRule, look: Look | None, step: Any) -> str | None:
        if rule.given is None:
            return rule.found_of_step(self.ctx, step)
        if (look, rule.given) not in self._given:
            self._given[look, rule.given] = rule.given(self.ctx, step)
        return rule.found_of_step(self.ctx, step, self._given[look, rule.given])

    def _step(self, look: Look, states: States) -> Any:
        """The step with these states, and with the events and the rows of their requests."""
        step, places = self.whole, self.course.places
        parts = dict(zip(places.states, states, strict=True))
        if look in OF_BLOCKS:
            moved = self.course.moved_rows
            parts["events"] = tuple(event for event in step.events if event.id in moved)
            if places.batch is not None:
                rows = getattr(step, places.batch)
                parts[places.batch] = tuple(row for row in rows if row.id in moved)
        return evolve(step, **parts)
