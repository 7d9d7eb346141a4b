"""Steps that repeat for ever: no client is left to come or go, and a state has come back."""

from collections.abc import Iterable, Iterator
from typing import Any

from attrs import define, field

from checks.harness.system import Step
from spec.core.rule import AnyRule, Goal

_PATIENCE_STEPS = 100  # without a token; from then on states are compared


class EndlessError(Exception):
    """A run would never end: its state after step `first` has come back after step `last`.

    `states`: those in between, from the one that `first` left to before it comes back.
    """

    def __init__(self, first: int, last: int, states: list[Any]) -> None:
        super().__init__(first, last)
        self.first, self.last, self.states = first, last, states

    def __str__(self) -> str:
        return self._text(self._pending)

    def unmet(self, rules: Iterable[AnyRule]) -> Iterator[tuple[AnyRule, str]]:
        """Rules with a goal that some requests reach in none of the states, and what is wrong."""
        for rule in rules:
            waiting = [
                request_id
                for request_id in self._pending
                if not self._is_reached(rule.goal, request_id)
            ]
            if waiting:
                yield rule, self._text(waiting)

    @property
    def _pending(self) -> list[str]:
        return sorted(row.id for row in self.states[0].present)

    def _is_reached(self, goal: Goal[Any] | None, request: str) -> bool:
        return goal is None or any(goal(state, request) for state in self.states)

    def _text(self, requests: list[str]) -> str:
        return f"steps {self.first + 1} to {self.last} repeat for ever, with {requests} pending"


@define
class Loops:
    """Notices that steps repeat: a scheduler's step follows from its state alone.

    Where a token was sampled no earlier state comes back. States are compared with one of them,
    later and later ones, so that those before the loop do not matter.
    """

    _quiet: int = 0  # steps without a token
    _states: list[Any] = field(factory=list)
    _compared_until: int = 2 * _PATIENCE_STEPS

    def observe(self, step: Step) -> None:
        """One more step, after which no client comes or goes.

        Raises:
            EndlessError: the step left the state that an earlier one left.
        """
        if step.outputs:
            self._quiet, self._compared_until = 0, 2 * _PATIENCE_STEPS
            self._states.clear()
            return
        self._quiet += 1
        if self._quiet < _PATIENCE_STEPS:
            return
        if self._states and step.after == self._states[0]:
            raise EndlessError(step.index - len(self._states), step.index, self._states)
        if self._quiet >= self._compared_until:
            self._compared_until *= 2
            self._states.clear()
        self._states.append(step.after)
