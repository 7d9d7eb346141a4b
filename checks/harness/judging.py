"""The rules of a policy, judged on the steps of any system."""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, TypeAlias

from attrs import frozen

from checks.harness.adapter import Adapter
from checks.harness.system import Step
from checks.harness.unreported import BEFORE, Guard, UnreportedError
from checks.registry import claims_of
from spec.core.configuration import PolicyConfig
from spec.core.rule import AnyRule, Kind, Rule


@frozen
class Broken:
    """A rule that is broken by a step, or by an arrival or abort before it, and the violation."""

    step: int
    rule: AnyRule
    found: str


def judgeable(config: PolicyConfig) -> list[AnyRule]:
    """The rules that judge single steps and states."""
    rules: list[AnyRule] = claims_of(config.policy).registry.applicable(config)
    return [rule for rule in rules if rule.kind is not Kind.EVENTUALLY]


Ask: TypeAlias = Callable[[AnyRule, Any, Any], str | None]  # of a context, and a step or states


class Judge:
    """Judges each step of an episode or a run by every applicable rule, or by the given rules.

    Judged are the step, its final state, and the arrivals and aborts before it. `not_evaluated`:
    rules that read unreported fields, each with the field.
    """

    def __init__(
        self,
        ctx: Any,
        rules: Iterable[AnyRule] | None = None,
        adapter: Adapter | None = None,
        unreported: Collection[str] = (),
        abilities: Collection[str] = (),
        *,
        trusted: bool | None = None,
    ) -> None:
        """`adapter`: of a driver, which may leave fields of its steps out.

        `unreported`, `abilities`: from the driver's hello. `trusted`: the steps are Lockstep's
        own, so a rule that raises is not caught; by default true without an adapter.
        """
        self.ctx = ctx
        self.rules = judgeable(ctx.config) if rules is None else list(rules)
        self.judged = 0
        self.not_evaluated: dict[str, str] = {}
        self._adapter = adapter
        self._is_trusted = adapter is None if trusted is None else trusted
        self._guard = None if adapter is None else Guard(adapter.fields, unreported, abilities)
        self._reports_before = BEFORE not in unreported
        self._in_state = [rule for rule in self.rules if rule.in_state]
        self._by_step = [rule for rule in self.rules if rule.of_step or rule.in_state]
        of_change = [rule for rule in self.rules if rule.of_change]
        if not self._reports_before:  # no change between two steps is ever seen
            changes_alone = [rule for rule in of_change if not (rule.of_step or rule.in_state)]
            self.not_evaluated |= {rule.id: BEFORE for rule in changes_alone}
        self._by_change = [*of_change, *self._in_state]
        self._left: Any = None  # the state that the last step left

    def observe(self, step: Step, *, aborted_while_running: bool = False) -> list[Broken]:
        """The violations in the next step.

        If a client left while the model ran and the rules do not know that case, only the actions
        before the step and its final state are judged.
        """
        self.judged += 1
        left, self._left = self._left, step.after
        found = [*self._before(left, step), *self._of(step, aborted_while_running)]
        return [Broken(step.index, rule, what) for rule, what in found]

    def observe_all(self, steps: Iterable[Step]) -> Iterator[Broken]:
        """The violations in the next steps."""
        return (violation for step in steps for violation in self.observe(step))

    def pass_over(self, *steps: Step) -> None:
        """Observe the next steps without judging them."""
        self._left = steps[-1].after

    def _before(self, left: Any, step: Step) -> Iterator[tuple[AnyRule, str]]:
        """The violations by arrivals and aborts, and in the state after them."""
        if not self._reports_before or left is step.before:
            return
        before = self._shown(step.before)
        if left is None:  # the first state
            yield from self._each(self._in_state, Rule.found_in_state, before)
        elif left != step.before:
            yield from self.of_change(self._shown(left), before)

    def of_change(self, before: Any, after: Any) -> Iterator[tuple[AnyRule, str]]:
        """The violations by a change between two steps, and in the state after it."""
        return self._each(self._by_change, _found_between, (before, after))

    def of_step(self, step: Any) -> Iterator[tuple[AnyRule, str]]:
        """The violations by a step, and in its final state."""
        return self._each(self._by_step, Rule.found_of_step, step)

    def _of(self, step: Step, aborted_while_running: bool) -> Iterator[tuple[AnyRule, str]]:
        """The violations by the step, and in its final state."""
        adapter = self._adapter
        if adapter is not None and aborted_while_running and not adapter.rules_know_leavers:
            yield from self._each(self._in_state, Rule.found_in_state, self._shown(step.after))
        else:
            yield from self.of_step(self._shown(step))

    def _shown(self, value: Any) -> Any:
        """A step or state without unreported fields."""
        return value if self._guard is None else self._guard(value)

    def _each(
        self, rules: Iterable[AnyRule], ask: Ask, given: Any
    ) -> Iterator[tuple[AnyRule, str]]:
        """The broken rules with their violations; `ask` applies a rule to `given`."""
        for rule in rules:
            if rule.id in self.not_evaluated:
                continue
            try:
                found = ask(rule, self.ctx, given)
            except UnreportedError as error:
                self.not_evaluated[rule.id] = str(error)
                continue
            except Exception as error:  # a driver's record may contradict itself
                if self._is_trusted:
                    raise
                found = f"cannot be judged: {type(error).__name__}: {error}"
            if found is not None:
                yield rule, found


def _found_between(rule: AnyRule, ctx: Any, states: tuple[Any, Any]) -> str | None:
    """The violation by a change between two steps, or in the state after it."""
    if rule.of_change:
        return rule.found_between(ctx, *states)
    return rule.found_in_state(ctx, states[1])
