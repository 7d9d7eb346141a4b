"""Check that each word of the formulas means the same on numbers, on lists, and in the solver.

`spec.core.arithmetic` and `spec.core.rows` have a branch that computes, which the reference runs,
and one that builds terms, which the prover uses. Both are compared with the word's definition: on
all small numbers and lists, on random lists of up to 40 rows, and on lists in which one row differs
from all others, at any of 40 places or as the last of many rows.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain, product
from random import Random
from typing import Any, NamedTuple

import z3
from attrs import frozen

from checks.proofs.any_rows import RowsOfAnyNumber, any_rows
from spec.core import arithmetic, blocks, rows

MOST_ROWS = 40
MANY_ROWS = 1_000  # more than any batch has by default
RANDOM_LISTS = 150
_NUMBERS = range(-3, 6)


@cache
def stale() -> str | None:
    """Why all proofs are stale: a word with two meanings; None if there is none."""
    return next(
        chain(_differences_of_numbers(), _differences_of_lists(), _differences_of_rows()), None
    )


# --- numbers --------------------------------------------------------------------------------------


@frozen
class Word:
    """A word of arithmetic, its definition on integers, and its number of arguments.

    `is_of_conditions`: it takes conditions; `divides`: its last number is positive.
    """

    name: str
    definition: Callable[..., Any]
    takes: int
    is_of_conditions: bool = False
    divides: bool = False

    @property
    def arguments(self) -> Iterator[tuple[Any, ...]]:
        """All small arguments."""
        if self.is_of_conditions:
            return product((True, False), repeat=self.takes)
        last = range(1, 6) if self.divides else _NUMBERS
        return product(*[_NUMBERS] * (self.takes - 1), last)


def _ceiling(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)


WORDS = (
    Word("floor_div", lambda dividend, divisor: dividend // divisor, 2, divides=True),
    Word("cdiv", _ceiling, 2, divides=True),
    Word("round_up", lambda value, by: _ceiling(value, by) * by, 2, divides=True),
    Word("maximum", lambda *values: sorted(values)[-1], 3),
    Word("minimum", lambda *values: sorted(values)[0], 3),
    Word("negate", lambda condition: not condition, 1, is_of_conditions=True),
    Word(
        "implies", lambda premise, conclusion: conclusion or not premise, 2, is_of_conditions=True
    ),
)
OF_SEVERAL = {"every": all, "some": any}  # words that take a list of conditions


def _term(value: Any) -> Any:
    return z3.BoolVal(value) if isinstance(value, bool) else z3.IntVal(value)


def _value(term: Any) -> Any:
    """The value of a term without variables."""
    if isinstance(term, bool | int):
        return term
    simple = z3.simplify(term)
    return z3.is_true(simple) if z3.is_bool(simple) else simple.as_long()


def _differences_of_numbers() -> Iterator[str]:
    for word in WORDS:
        run = getattr(arithmetic, word.name)
        for arguments in word.arguments:
            yield from _differences(run, arguments, word.definition(*arguments))
    for name, definition in OF_SEVERAL.items():
        run = getattr(arithmetic, name)
        for length in range(4):
            for conditions in product((True, False), repeat=length):
                found = _value(run(conditions)), _value(run([_term(value) for value in conditions]))
                if found != (definition(conditions),) * 2:
                    yield f"{name} of {conditions} is {found}"
    for condition in (True, False):
        expected = 2 if condition else 3
        yield from _differences(arithmetic.select, (condition, 2, 3), expected)
    for tokens, size in product(range(9), range(1, 5)):
        yield from _differences(blocks.block_count, (tokens, size), _ceiling(tokens, size))
        yield from _differences(blocks.block_index, (tokens, size), tokens // size)


def _differences(run: Callable[..., Any], arguments: Sequence[Any], expected: Any) -> Iterator[str]:
    found = run(*arguments), _value(run(*map(_term, arguments)))
    if found != (expected, expected):
        name = f"{run.__name__}{tuple(arguments)}"
        yield f"{name} is {found[0]}, in the solver {found[1]}, by definition {expected}"


# --- lists ----------------------------------------------------------------------------------------


def _lists() -> Iterator[list[int]]:
    """All small lists of small numbers, random lists of up to 40, and lists with one unlike row."""
    for length in range(5):
        yield from map(list, product(range(-1, 3), repeat=length))
    random = Random("words")
    for _ in range(RANDOM_LISTS):
        top = random.choice((2, 9, 1000))
        yield [random.randint(-top, top) for _ in range(random.randint(5, MOST_ROWS))]
    for others, unlike in ((0, 1), (1, 0)):
        for place in (*range(MOST_ROWS), MANY_ROWS):
            length = max(place + 1, MOST_ROWS)
            yield [unlike if index == place else others for index in range(length)]


def _is_large(number: int) -> bool:
    return number >= 1


def _differences_of_lists() -> Iterator[str]:
    for numbers in _lists():
        large = [number for number in numbers if number >= 1]
        expected = {
            "each_of": [number + 1 for number in numbers],
            "with_row": [*numbers, 7],
            "total_of": sum(numbers),
            "all_of": len(large) == len(numbers),
            "any_of": bool(large),
            "count_of": len(large),
        }
        found = {
            "each_of": rows.each_of(numbers, lambda number: number + 1),
            "with_row": rows.with_row(numbers, 7),
            "total_of": rows.total_of(numbers, lambda number: number),
            "all_of": rows.all_of(numbers, _is_large),
            "any_of": rows.any_of(numbers, _is_large),
            "count_of": rows.count_of(numbers, _is_large),
        }
        if numbers:
            expected["largest_of"] = sorted(numbers)[-1]
            found["largest_of"] = rows.largest_of(numbers, lambda number: number)
        for name, value in expected.items():
            if found[name] != value:
                yield f"{name} of {len(numbers)} rows is {found[name]}, by definition {value}"


# --- rows of any number ---------------------------------------------------------------------------


class _Row(NamedTuple):
    number: Any


def _number(row: _Row) -> Any:
    return row.number


def _condition(row: _Row) -> Any:
    return row.number >= 1


def _differences_of_rows() -> Iterator[str]:
    """Words on any number of rows that yield another fold than the solver expects."""
    folds = {"largest_of": "largest", "total_of": "total", "all_of": "all", "count_of": "count"}
    for name, fold in folds.items():
        any_number = any_rows(z3.Int, "word", _Row, ("number",))
        assert isinstance(any_number, RowsOfAnyNumber)
        is_condition = name in ("all_of", "count_of")
        of_row = _condition if is_condition else _number
        getattr(rows, name)(any_number, of_row)
        (used,) = any_number.folds.known.values()
        body = z3.simplify(used.value == of_row(any_number.value(used.each)))
        if (
            used.word != fold
            or not z3.is_true(body)
            or not used.is_there.eq(any_number.is_there(used.each))
        ):
            yield f"{name} of rows of any number is the fold {used.word}"
