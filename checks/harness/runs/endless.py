"""Livelock detection: a state recurs and no client event is pending."""

from collections.abc import Iterable, Iterator
from typing import Any

from attrs import define, field

from checks.harness.system import Step
from spec.core.rule import AnyRule

_PATIENCE_STEPS = 100  # steps without a token before states are compared


class EndlessError(Exception):
    """A run never ends: its state after step `last` equals the one after step `first`.

    `states`: the states after the steps from `first` to before `last`.
    """

    def __init__(self, first: int, last: int, states: list[Any]) -> None:
        super().__init__(first, last)
        self.first, self.last, self.states = first, last, states

    def __str__(self) -> str:
        return self._text(self._pending)

    def unmet(self, rules: Iterable[AnyRule]) -> Iterator[tuple[AnyRule, str]]:
        """Rules whose goal some requests reach in no state of the loop, with a message."""
        for rule in rules:
            waiting = [
                request_id
                for request_id in self._pending
                if rule.goal and not any(rule.goal(state, request_id) for state in self.states)
            ]
            if waiting:
                yield rule, self._text(waiting)

    @property
    def _pending(self) -> list[str]:
        return sorted(row.id for row in self.states[0].present)

    def _text(self, requests: list[str]) -> str:
        return f"steps {self.first + 1} to {self.last} repeat for ever, with {requests} pending"


@define
class Loops:
    """Detects repeating steps: a scheduler's step depends on its state alone.

    A sampled token resets the search, because no earlier state can recur after it. Each state is
    compared with one stored state, which is replaced at growing intervals, so that states before
    the loop do not matter.
    """

    _quiet: int = 0  # steps without a token
    _states: list[Any] = field(factory=list)
    _compared_until: int = 2 * _PATIENCE_STEPS

    def observe(self, step: Step) -> None:
        """Take a step after which no client arrives or leaves.

        Raises:
            EndlessError: the state after the step equals an earlier one.
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
