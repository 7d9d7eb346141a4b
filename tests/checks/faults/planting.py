"""Planted faults: wrong versions of a machine's functions, and the first rule that notices each.

Each policy has a table of faults of its own, and instances to look for them in.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from inspect import getattr_static, isfunction
from types import ModuleType
from typing import Any

import pytest
from attrs import frozen

from checks.evidence import EXPLORED, recorded
from checks.explore.bounds import Bounds
from checks.explore.examine import MACHINE_ERROR
from checks.explore.instance import Instance, title_of
from checks.explore.model import Model, Property, Violation
from checks.explore.policy import machine_of
from checks.explore.properties import properties_of
from checks.explore.search import explore
from tests.checks.faults.patches import Wrong


@frozen
class Planted:
    """A wrong version of the function or method `attribute` of `place`, a module or a class.

    A function is wrong for all that import it from the module that defines it.
    """

    name: str
    sentence: str
    place: Any
    attribute: str
    wrong: Wrong

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Switch the fault in."""
        static, wrong = getattr_static(self.place, self.attribute), self.wrong
        right = getattr(static, "fget", None) or getattr(self.place, self.attribute)

        def planted(*given: Any, **more: Any) -> Any:
            return wrong(right, *given, **more)

        made = property(planted) if isinstance(static, property) else planted
        for place in (self.place, *_importers(right, self.place)):
            monkeypatch.setattr(place, self.attribute, made)


def _importers(right: Any, place: Any) -> list[ModuleType]:
    """The modules that have the function from this one under its own name."""
    if not isfunction(right) or right.__module__ != getattr(place, "__name__", None):
        return []
    modules = [module for module in sys.modules.values() if isinstance(module, ModuleType)]
    return [
        module
        for module in modules
        if vars(module).get(right.__name__) is right and module is not place
    ]


@frozen
class Fault(Planted):
    """A wrong version of a transition, or of what decides whether it is taken.

    `instance` is where to look. `rules` are exactly those that the shortest runs into any violation
    break. "guard" before a rule: the machine stopped at a guard that names that rule.
    """

    transition: str
    instance: str
    rules: tuple[str, ...]


def name_and_sentence(wrong: Wrong, text: str) -> tuple[str, str]:
    """Name and sentence of a fault, from a text with a colon or a function with a docstring."""
    name, _, sentence = text.partition(": ")
    return name or wrong.__name__.replace("_", " "), sentence or wrong.__doc__ or ""


class FaultTable(list[Fault]):
    """The planted faults of a policy, in the order in which they are written.

    `instances`, by name: those that are explored by default, and some more that lead to one
    situation quickly.
    """

    def __init__(self, policy: str, more: Iterable[Instance[Any]] = ()) -> None:
        super().__init__()
        self.policy = policy
        self.instances = {
            instance.name: instance for instance in (*machine_of(policy).instances, *more)
        }

    def fault(
        self, place: Any, attribute: str, *, on: str, rules: str, of: str | None = None
    ) -> Callable[..., Wrong]:
        """Decorator for a wrong function; or to be called with one and a text on it.

        It replaces the function `attribute` of `place`, which is or decides the transition `of`,
        to look for `on` an instance. `rules` lists the rules, separated by commas. The wrong
        function is given the right one first, then the arguments. The text is a name and,
        behind a colon, a sentence; a decorated function has its own name and docstring.
        """

        def register(wrong: Wrong, text: str = "") -> Wrong:
            name, sentence = name_and_sentence(wrong, text)
            self.append(
                Fault(
                    name=name,
                    sentence=sentence,
                    transition=of or attribute,
                    place=place,
                    attribute=attribute,
                    wrong=wrong,
                    instance=on,
                    rules=tuple(rules.split(", ")),
                )
            )
            return wrong

        return register

    def broken_first(self, instance: Instance[Any]) -> set[str]:
        """What is broken first of the rules that hold without a fault, endless runs left out."""
        model = machine_of(self.policy).model(instance)
        refuted = recorded_refutations(instance)
        safety = properties_of(model).safety
        return broken_first(model, [claim for claim in safety if claim.rule not in refuted])


def recorded_refutations(instance: Instance[Any]) -> frozenset[str]:
    """The rules that a default instance refutes on record; none of any other."""
    kept = recorded(EXPLORED).get(title_of(instance), {})
    return frozenset(kept.get("violations", ()))


def broken_first(model: Model[Any], safety: Sequence[Property[Any]]) -> set[str]:
    """All rules that the shortest runs break; "guard" and the rule where the machine stopped."""
    first = explore(model, safety).violations
    if not first:
        return set()
    bounds = Bounds(max_depth=_attempted(first[0]))
    others = explore(model, safety, keep_going=True, bounds=bounds).violations
    return {_named(violation) for violation in (*first, *others)}


def _attempted(violation: Violation[Any]) -> int:
    """Actions up to the violation, the one that the machine could not take included."""
    return len(violation.counterexample.steps) + (violation.rule == MACHINE_ERROR)


def _named(violation: Violation[Any]) -> str:
    if violation.rule != MACHINE_ERROR:
        return violation.rule
    return f"guard {violation.found.rpartition('not allowed here: ')[2]}"
