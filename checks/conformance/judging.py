"""The registry's rules on a driver's own steps, whatever the reference did."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from attrs import evolve, frozen

from checks.conformance.leftout import BEFORE, UntoldError, guard_of
from checks.conformance.moves import seen_events
from spec.records import Context, Step
from spec.rules import Kind, Rule, applicable
from spec.state import State


@frozen
class Broken:
    """A rule that a step, or what happened before it, breaks."""

    step: int
    rule: Rule
    found: str


class Judge:
    """Holds every applicable rule that the driver tells enough for against its steps."""

    def __init__(self, ctx: Context, left_out: Iterable[str]) -> None:
        self._ctx = ctx
        left_out = tuple(left_out)
        self._guard = guard_of(left_out)
        self._looks_between = BEFORE not in left_out
        # What changed of a state can be told apart only where nothing of it is left out.
        self._tells_states = not set(left_out) - {BEFORE}
        self._rules = [rule for rule in applicable(ctx.config) if rule.kind is not Kind.EVENTUALLY]
        self._left: State | None = None
        self.judged = 0
        self.met: Counter[str] = Counter()  # steps on which a rule had something to say
        self.untold: dict[str, str] = {}  # rules that ask for what is not told, with what

    def observe(self, step: Step, *, aborted_while_running: bool) -> list[Broken]:
        """What the next step breaks.

        A step whose client left in its middle is seen without its token: only what came before it
        and what it left is judged.
        """
        self.judged += 1
        left, self._left = self._left, step.after
        ctx, guard = self._ctx, self._guard
        seen = guard(evolve(step, events=seen_events(step, ctx.config.block_size)))
        before, after = guard(step.before), guard(step.after)
        found: list[tuple[Rule, str]] = []
        if left is not None and self._looks_between and left != step.before:
            was = guard(left)
            found += self._each(lambda rule: rule.found_between(ctx, was, before))
        if aborted_while_running:
            found += self._each(lambda rule: rule.found_in_state(ctx, after))
        else:
            found += self._each(
                lambda rule: (
                    rule.found_of_step(ctx, seen)
                    if rule.of_step or self._tells_states
                    else rule.found_in_state(ctx, after)
                )
            )
        if step.aborted and self._looks_between:
            found += self._each(lambda rule: rule.found_in_state(ctx, before))
        return [Broken(step.index, rule, told) for rule, told in found]

    def _each(self, asked: Callable[[Rule], str | None]) -> Iterator[tuple[Rule, str]]:
        for rule in self._rules:
            if rule.id in self.untold:
                continue
            try:
                found = asked(rule)
            except UntoldError as error:
                self.untold[rule.id] = str(error)
                continue
            if found is not None:
                yield rule, found
