"""Wrong formulas in place of those that an obligation relies on."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from attrs import frozen

from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.prover import prove
from checks.proofs.registry import Verdict
from tests.checks.proofs.numbers import drawn

TRIES = 1_000

Formula = Callable[..., Any]


@frozen
class Fault:
    """A wrong version of a formula that an obligation's module imports."""

    module: ModuleType
    name: str
    wrong: Formula


def proven() -> list[str]:
    """The obligations that a correct specification meets."""
    return [name for name, told in OBLIGATIONS.items() if told.expected is Verdict.PROVEN]


def is_caught(name: str, fault: Fault, monkeypatch: pytest.MonkeyPatch) -> bool:
    """True if the claim fails with the fault, on random numbers or in the solver."""
    monkeypatch.setattr(fault.module, fault.name, fault.wrong)
    by_chance = any(not statement.claim for _, statement in drawn(name, TRIES))
    return by_chance or prove(OBLIGATIONS[name]).verdict is Verdict.REFUTED


def one_more(formula: Formula) -> Formula:
    return lambda *arguments: formula(*arguments) + 1


def one_less(formula: Formula) -> Formula:
    return lambda *arguments: formula(*arguments) - 1


def always(*_: Any) -> bool:
    return True
