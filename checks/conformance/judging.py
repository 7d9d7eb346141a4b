"""The registry's rules on a driver's own steps, whatever the reference did."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from attrs import evolve, frozen

from checks.conformance.counterpart import Counterpart, Step
from checks.conformance.leftout import BEFORE, Guard, UntoldError
from spec.core.rule import AnyRule, Kind, Rule


@frozen
class Broken:
    """A rule that a step, or what happened before it, breaks."""

    step: int
    rule: AnyRule
    found: str


class Judge:
    """Holds every applicable rule that the driver tells enough for against its steps."""

    def __init__(self, counterpart: Counterpart, ctx: Any, left_out: Iterable[str]) -> None:
        self._ctx = ctx
        left_out = tuple(left_out)
        self._guard = Guard(counterpart.fields, left_out)
        self._moves = counterpart.moves
        self._rules_know_leavers = counterpart.rules_know_leavers
        self._looks_between = BEFORE not in left_out
        # What changed of a state can be told apart only where nothing of it is left out.
        tells_states = not set(left_out) - {BEFORE}
        applicable = counterpart.policy.registry.applicable(ctx.config)
        rules = [rule for rule in applicable if rule.kind is not Kind.EVENTUALLY]
        self._of_change = [rule for rule in rules if rule.of_change]
        self._of_state = [rule for rule in rules if rule.in_state]
        self._of_step = [rule for rule in rules if rule.of_step or tells_states]
        self._of_state_alone = [] if tells_states else self._of_state
        self._left: Any = None  # the state that the last step left
        self.judged = 0
        self.untold: dict[str, str] = {}  # rules that ask for what is not told, with what

    def observe(self, step: Step, *, aborted_while_running: bool) -> list[Broken]:
        """What the next step breaks.

        A step whose client left in its middle is seen without its token: where rules do not know
        of that, only what came before it and what it left is judged.
        """
        self.judged += 1
        left, self._left = self._left, step.after
        guard = self._guard
        before, after = guard(step.before), guard(step.after)
        found: list[tuple[AnyRule, str]] = []
        if left is not None and self._looks_between and left != step.before:
            found += self._each(self._of_change, Rule.found_between, guard(left), before)
        if aborted_while_running and not self._rules_know_leavers:
            found += self._each(self._of_state, Rule.found_in_state, after)
        else:
            seen = guard(evolve(step, events=self._moves(step, self._ctx.config.block_size)))
            found += self._each(self._of_step, Rule.found_of_step, seen)
            found += self._each(self._of_state_alone, Rule.found_in_state, after)
        if step.aborted and self._looks_between:
            found += self._each(self._of_state, Rule.found_in_state, before)
        return [Broken(step.index, rule, told) for rule, told in found]

    def _each(
        self, rules: Iterable[AnyRule], asked: Callable[..., str | None], *given: Any
    ) -> Iterator[tuple[AnyRule, str]]:
        """The rules that find something, `asked` in the way that suits their kind."""
        ctx, untold = self._ctx, self.untold
        for rule in rules:
            if rule.id in untold:
                continue
            try:
                found = asked(rule, ctx, *given)
            except UntoldError as error:
                untold[rule.id] = str(error)
                continue
            if found is not None:
                yield rule, found
