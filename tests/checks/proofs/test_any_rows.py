"""Facts about any number of rows, given to the solver, are true of every listed number of rows."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import pytest
import z3

from checks.proofs.any_rows import (
    ROW,
    RowsOfAnyNumber,
    any_rows,
    facts,
    look_at_counted,
    row_where_not,
    row_with_largest,
    where,
)
from spec.core.rows import (
    UnlistableRowsError,
    all_of,
    any_of,
    count_of,
    each_of,
    largest_of,
    total_of,
    with_row,
)


class Pair(NamedTuple):
    first: Any
    second: Any


def pairs() -> RowsOfAnyNumber:
    """Rows of two numbers, as the solver has them."""
    rows = any_rows(z3.Int, "row", Pair, ("first", "second"))
    assert isinstance(rows, RowsOfAnyNumber)
    return rows


EXACT = {2, 4}  # by their places in what follows


def folds(rows: Any, level: Any) -> list[Any]:
    """A number from every fold, nested folds too."""
    above = where(rows, lambda row: row[0] >= level)
    more = with_row(above, Pair(level, 7))
    row_with_largest(above, lambda row: row[1])
    row_where_not(rows, lambda row: row[1] >= 3)
    look_at_counted(more, lambda row: row[1] >= 3)
    return [
        count_of(rows, lambda row: row[0] >= level),
        count_of(more, lambda row: row[1] >= 3),
        largest_of(more, lambda row: row[0] + row[1]),
        total_of(more, lambda row: row[0]) - 100 * total_of(rows, lambda row: row[1]),
        z3.If(all_of(rows, lambda row: row[0] >= level), 1, 0),
        z3.If(any_of(rows, lambda row: count_of(rows, lambda other: other[1] > row[1]) > 1), 1, 0),
    ]


def expected_folds(rows: Sequence[tuple[int, int]], level: int) -> list[int]:
    """The same numbers of listed rows, by definition."""
    above = [row for row in rows if row[0] >= level]
    more = [*above, (level, 7)]
    return [
        len(above),
        len([row for row in more if row[1] >= 3]),
        max(row[0] + row[1] for row in more),
        sum(row[0] for row in more) - 100 * sum(row[1] for row in rows),
        int(len(above) == len(rows)),
        int(any(len([other for other in rows if other[1] > row[1]]) > 1 for row in rows)),
    ]


def listed(rows: RowsOfAnyNumber, numbers: Sequence[tuple[int, int]]) -> list[z3.BoolRef]:
    """The rows are these, and there is one more element that is none of them."""
    elements = [z3.Const(f"element {place}", ROW) for place in range(len(numbers))]
    other = z3.Const("element that is none", ROW)
    any_element = z3.Const("any element", ROW)
    everything = z3.ForAll(
        any_element, z3.Or([any_element == element for element in (*elements, other)])
    )
    return [
        everything,
        z3.Distinct(*elements, other),
        z3.Not(rows.is_there(other)),
        *(
            z3.And(
                rows.is_there(element),
                rows.value(element)[0] == first,
                rows.value(element)[1] == second,
            )
            for element, (first, second) in zip(elements, numbers, strict=True)
        ),
    ]


@pytest.mark.parametrize("seed", range(8))
def test_what_is_said_of_folds_is_true_of_listed_rows(seed: int) -> None:
    random = Random(seed)
    numbers = [(random.randint(0, 4), random.randint(0, 4)) for _ in range(random.randint(0, 4))]
    rows, level = pairs(), random.randint(0, 4)
    found = folds(rows, z3.IntVal(level))
    meant = [
        actual == other for actual, other in zip(found, expected_folds(numbers, level), strict=True)
    ]
    solver = z3.Solver()
    solver.add(*listed(rows, numbers), *facts(rows.folds, meant))

    assert solver.check() == z3.sat


@pytest.mark.parametrize("number", range(6))
def test_of_listed_rows_each_number_is_said_as_it_is_or_left_open(number: int) -> None:
    """Largest numbers and whether all are so are known; counts and sums are only compared."""
    numbers, level = [(1, 4), (2, 0), (3, 3)], 1
    rows = pairs()
    found = folds(rows, z3.IntVal(level))[number]
    right = expected_folds(numbers, level)[number]
    solver = z3.Solver()
    solver.add(*listed(rows, numbers), *facts(rows.folds, [found != right]))

    assert solver.check() == (z3.unsat if number in EXACT else z3.sat)


def listing(rows: Any) -> list[Any]:
    return list(rows)


def first_five(rows: Any) -> Any:
    return rows[:5]


def how_many(rows: Any) -> int:
    return len(rows)


@pytest.mark.parametrize("lists", [listing, first_five, how_many, max])
def test_rows_of_any_number_refuse_to_be_listed(lists: Callable[[Any], Any]) -> None:
    with pytest.raises(UnlistableRowsError, match="of which there may be any number"):
        lists(each_of(pairs(), lambda row: row[0]))
