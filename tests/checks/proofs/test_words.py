"""A fold or formula that differs between numbers, lists and rows makes every proof stale."""

from collections.abc import Callable
from typing import Any

import pytest

from checks.proofs import words
from checks.proofs.prover import prove_all
from checks.proofs.registry import Verdict
from spec.core import arithmetic, rows


def stale() -> str | None:
    return words.stale.__wrapped__()


def test_each_word_means_the_same_on_numbers_lists_and_rows() -> None:
    assert stale() is None


def truncated(count: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function applied to the first `count` rows only."""
    return lambda listed, of_row: (
        function(listed[:count], of_row) if isinstance(listed, list) else 0
    )


@pytest.mark.parametrize("name", ["largest_of", "count_of", "total_of", "all_of", "any_of"])
def test_a_word_that_looks_at_the_first_1000_rows_only_is_noticed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, name, truncated(1_000, getattr(rows, name)))

    assert " rows is " in str(stale())


def test_a_word_that_yields_another_fold_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = rows.total_of

    def largest(some: Any, number: Callable[..., Any]) -> Any:
        return right(some, number) if isinstance(some, list) else rows.largest_of(some, number)

    monkeypatch.setattr(rows, "total_of", largest)

    assert stale() == "total_of of rows of any number is the fold largest"


def test_arithmetic_that_the_solver_sees_otherwise_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = arithmetic.minimum
    monkeypatch.setattr(
        arithmetic, "minimum", lambda *given: right(*given) if type(given[0]) is int else given[0]
    )

    assert str(stale()).endswith("(-2, -3, -3) is -3, in the solver -2, by definition -3")


def test_with_a_word_of_two_meanings_nothing_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "stale", lambda: "a word means two things")

    (proof,) = prove_all(["PRV-DEF-2"])

    assert (proof.verdict, proof.reason) == (Verdict.STALE, "a word means two things")
