"""Planted faults: wrong versions of a machine's functions, and what notices each of them first.

Each policy has a table of faults of its own, and instances to look for them in.
"""

from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

import pytest
from attrs import frozen

from checks.explore import MACHINE_ERROR, Bounds, Eventually, Model, Property, Violation, explore

Right = Callable[..., Any]
At = TypeVar("At")


@frozen
class Fault:
    """A wrong version of a transition, or of what decides whether it is taken.

    It replaces the function `attribute` of the module `place`. `instance` is where to look.
    `rules` are exactly those that the shortest runs into any violation break. "guard" before a
    rule: the machine stopped at a guard that names that rule.
    """

    name: str
    sentence: str
    transition: str
    place: ModuleType
    attribute: str
    wrong: Right
    instance: str
    rules: tuple[str, ...]

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Switch the fault in."""
        right = getattr(self.place, self.attribute)
        monkeypatch.setattr(self.place, self.attribute, partial(self.wrong, right))


class FaultTable(list[Fault]):
    """The planted faults of a policy, in the order in which they are written."""

    def fault(
        self, transition: str, place: ModuleType, attribute: str, *, on: str, caught_by: str
    ) -> Callable[[Right], Right]:
        """Enter the decorated function as a fault of `transition`, to look for `on` an instance.

        `caught_by` lists the rules, separated by commas. The function is given the right one
        first, then the arguments; its name, and its docstring if it has one, say what is wrong.
        """

        def register(wrong: Right) -> Right:
            self.append(
                Fault(
                    name=wrong.__name__.replace("_", " "),
                    sentence=wrong.__doc__ or "",
                    transition=transition,
                    place=place,
                    attribute=attribute,
                    wrong=wrong,
                    instance=on,
                    rules=tuple(caught_by.split(", ")),
                )
            )
            return wrong

        return register


def broken_first(model: Model[At], properties: Sequence[Property[At]]) -> set[str]:
    """All rules that the shortest runs break; "guard" and the rule where the machine stopped.

    What only an endless run refutes is among them where no state and no step breaks anything.
    """
    first = explore(model, properties).violations
    if not first:
        return set()
    safety = [one for one in properties if not isinstance(one, Eventually)]
    bounds = Bounds(max_depth=_attempted(first[0]))
    others = explore(model, safety, keep_going=True, bounds=bounds).violations
    return {_named(violation) for violation in (*first, *others)}


def _attempted(violation: Violation[At]) -> int:
    """Actions up to the violation, the one that the machine could not take included."""
    return len(violation.counterexample.steps) + (violation.rule == MACHINE_ERROR)


def _named(violation: Violation[At]) -> str:
    if violation.rule != MACHINE_ERROR:
        return violation.rule
    return f"guard {violation.found.rpartition('not allowed here: ')[2]}"
