"""Changes to formulas and references, and a proof that each changes some run."""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from inspect import getsource
from pathlib import Path
from random import Random
from textwrap import dedent
from typing import Any

from attrs import field, frozen

from checks.harness.case import Case
from checks.harness.choices import Choices
from checks.harness.policy import evidence_of
from checks.harness.runs.serving import served
from checks.registry import claims_of
from engine.workloads.own import request_of
from reference.core.guards import GuardError
from spec.core.errors import ConfigError


@frozen
class Change:
    """A change at one place of a function.

    `place`: module and function. `text` is replaced by `instead`, once. `noticed_by`: for a
    formula an obligation that is refuted or not proven; for a reference the link that is stale.
    `config` and `requests`, as files write them: of a run that the change makes another one, where
    the table has one. A request with `times` comes that often.
    """

    place: str
    text: str
    instead: str
    noticed_by: str = ""
    config: Mapping[str, Any] = field(factory=dict)
    requests: Sequence[Mapping[str, Any]] = ()

    def __str__(self) -> str:
        return f"{self.place.rpartition('.')[2]}: {self.text} -> {self.instead}"

    @property
    def function(self) -> Any:
        """The function that is changed, as its module has it."""
        module, _, name = self.place.rpartition(".")
        return getattr(import_module(module), name)

    def case(self, policy: str) -> Case:
        """The run that stands beside the change."""
        lines = [
            {key: value for key, value in request.items() if key != "times"}
            for request in self.requests
            for _ in range(request.get("times", 1))
        ]
        requests = tuple(request_of({"id": str(place), **line}) for place, line in enumerate(lines))
        return Case(claims_of(policy).config.from_mapping(self.config), requests)

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Run the changed code wherever the function is called, until the context ends."""
        function = self.function
        source = dedent(getsource(function))
        assert source.count(self.text) == 1, f"{self.text!r} stands {source.count(self.text)} times"
        made: dict[str, Any] = {}
        exec(source.replace(self.text, self.instead), function.__globals__, made)
        right = function.__code__
        function.__code__ = made[function.__name__].__code__
        try:
            yield
        finally:
            function.__code__ = right


def change_table(file: str) -> dict[str, list[Change]]:
    """The changes of a file beside this one, by policy."""
    tables = tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))
    return {policy: [Change(**table) for table in listed] for policy, listed in tables.items()}


def reference_steps(case: Case, most: int = 400) -> list[Any]:
    """The steps of the reference, and the guard at which it stops, if it does."""
    steps: list[Any] = []
    try:
        for step in served(case):
            steps.append(step)
            if len(steps) >= most:
                break
    except GuardError as error:
        steps.append(str(error))
    except Exception as error:  # a changed machine may do anything
        steps.append(repr(error))
    return steps


def drawn_cases(
    policy: str, large: Callable[[Random], Case] | None = None, **pinned: Any
) -> Iterator[Case]:
    """Random cases of the policy's generator, half with the pinned keys; then large runs."""
    for seed in range(80):
        with suppress(ConfigError):
            keys = pinned if seed % 2 else {}
            yield evidence_of(policy).generate(Choices(Random(seed).random), keys)
    for seed in range(20):
        if large is not None:
            yield large(Random(seed))


def changes_a_run(change: Change, cases: Iterable[Case]) -> bool:
    """True if some case has other steps with the change."""
    for case in cases:
        right = reference_steps(case)
        with change.planted():
            wrong = reference_steps(case)
        if right != wrong:
            return True
    return False
