"""Rows of a batch, in words that hold for any number of them.

A formula about rows takes from them what these words take, and nothing else. Of a list they
compute. Of rows that cannot be listed, because there may be any number of them, they build the
terms that the prover reasons about: so what is proven for every batch size is what runs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

from spec.core.arithmetic import Number, Truth, every, maximum, negate, select

Row: TypeAlias = Any  # a number or a record of numbers
Rows: TypeAlias = Any  # a sequence of rows or `AnyRows`; no type of the solver's says "either"


class UnlistableRowsError(TypeError):
    """A formula lists rows, or counts them all, of which there may be any number."""

    def __init__(self, wanted: str) -> None:
        super().__init__(f"a formula {wanted}, of which there may be any number")


class AnyRows(ABC):
    """Rows of any number, which cannot be listed. Each has a value, a number or a record.

    A formula that lists them is refused with `UnlistableRowsError`: it speaks of some number of
    rows, independent of the other rows.
    """

    def __iter__(self) -> NoReturn:
        raise UnlistableRowsError("goes through the rows")

    def __getitem__(self, _place: int | slice) -> NoReturn:
        raise UnlistableRowsError("takes some of the rows by their places")

    def __len__(self) -> NoReturn:
        raise UnlistableRowsError("counts the rows")

    @abstractmethod
    def each(self, function: Callable[[Row], Row]) -> "AnyRows":
        """The rows with another value each."""

    @abstractmethod
    def with_row(self, row: Row) -> "AnyRows":
        """The rows and one more."""

    @abstractmethod
    def largest(self) -> Number:
        """The largest of their values, which are numbers; of no row it can be any number."""

    @abstractmethod
    def total(self) -> Number:
        """The sum of their values, which are numbers."""

    @abstractmethod
    def are_all_true(self) -> Truth:
        """True if the values, which are conditions, all hold."""

    @abstractmethod
    def count(self) -> Number:
        """How many of the values, which are conditions, hold."""


def each_of(rows: Rows, function: Callable[[Row], Row]) -> Rows:
    """What the function makes of each row, in their order."""
    return rows.each(function) if isinstance(rows, AnyRows) else [function(row) for row in rows]


def with_row(rows: Rows, row: Row) -> Rows:
    """The rows and one more behind them."""
    return rows.with_row(row) if isinstance(rows, AnyRows) else [*rows, row]


def largest_of(rows: Rows, number: Callable[[Row], Number]) -> Number:
    """The largest number that any row has; there is at least one row."""
    of_rows = each_of(rows, number)
    return of_rows.largest() if isinstance(of_rows, AnyRows) else maximum(*of_rows)


def total_of(rows: Rows, number: Callable[[Row], Number]) -> Number:
    """The sum of a number that each row has; 0 of no row."""
    of_rows = each_of(rows, number)
    return of_rows.total() if isinstance(of_rows, AnyRows) else sum(of_rows)


def all_of(rows: Rows, condition: Callable[[Row], Truth]) -> Truth:
    """True if the condition holds for every row."""
    of_rows = each_of(rows, condition)
    return of_rows.are_all_true() if isinstance(of_rows, AnyRows) else every(of_rows)


def any_of(rows: Rows, condition: Callable[[Row], Truth]) -> Truth:
    """True if the condition holds for some row."""
    return negate(all_of(rows, lambda row: negate(condition(row))))


def count_of(rows: Rows, condition: Callable[[Row], Truth]) -> Number:
    """For how many rows the condition holds."""
    of_rows = each_of(rows, condition)
    if isinstance(of_rows, AnyRows):
        return of_rows.count()
    return sum(select(holds, 1, 0) for holds in of_rows)
