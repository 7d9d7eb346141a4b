"""Random small numbers on which an obligation is checked without a solver.

Small numbers meet boundaries often. Numbers that satisfy an obligation's hypotheses show that it is
not vacuous; numbers that break its claim refute it. A claim about any number of rows is checked on
listed rows; `NAME_rows` is their number.
"""

from collections.abc import Callable, Iterator
from random import Random

from checks.proofs.registry import Numbers, Obligation, Statement

DIVISORS = ("block_size", "bytes_of_block", "chunk_size")  # never zero
MOST_ROWS = 5
TRIES = 400
_TOPS = (2, 3, 5, 8, 30, 300)


def drawn(obligation: Obligation, tries: int = TRIES) -> Iterator[tuple[Numbers, Statement]]:
    """Random numbers that satisfy the obligation's hypotheses, each with its statement."""
    random = Random(obligation.id)
    for _ in range(tries):
        numbers, statement = _drawn_once(obligation, random)
        if statement is not None and all(statement.given):
            yield numbers, statement


def _drawn_once(obligation: Obligation, random: Random) -> tuple[Numbers, Statement | None]:
    top = random.choice(_TOPS)
    chosen: dict[str, int] = {}

    def integer(name: str) -> int:
        if name.endswith("_rows"):
            return chosen.setdefault(name, random.randint(1, MOST_ROWS))
        least = 1 if name in DIVISORS else 0
        most = top * random.choice((2, 12)) if name == "limit" else top
        return chosen.setdefault(name, random.randint(least, most))

    return chosen, stated(obligation, integer)


def stated(obligation: Obligation, integer: Callable[[str], int]) -> Statement | None:
    """The obligation's statement of these numbers; None if it cannot be stated."""
    try:
        return obligation.statement(integer)
    except (ZeroDivisionError, LookupError, ValueError):
        return None


def is_broken(obligation: Obligation, numbers: Numbers) -> bool:
    """True if the numbers satisfy the hypotheses and break the claim."""
    statement = stated(obligation, numbers.__getitem__)
    return statement is not None and all(statement.given) and not statement.claim


def smallest(
    obligation: Obligation, numbers: Numbers, keeps: Callable[[Numbers], bool] = lambda _: True
) -> dict[str, int]:
    """The numbers made smaller one by one, as long as they break the claim and `keeps` holds."""
    result, is_smaller = dict(numbers), True
    while is_smaller:
        is_smaller = False
        for name in result:
            for less in _smaller(result[name]):
                smaller = {**result, name: less}
                if is_broken(obligation, smaller) and keeps(smaller):
                    result[name], is_smaller = less, True
                    break
    return _used(obligation, result)


def _smaller(number: int) -> Iterator[int]:
    """Smaller numbers of the same sign to try, the smallest first."""
    sign, size = (1 if number > 0 else -1), abs(number)
    tried = sorted({0, 1, size // 2, size - 1})
    return (sign * less for less in tried if 0 <= less < size)


def _used(obligation: Obligation, numbers: dict[str, int]) -> dict[str, int]:
    """The numbers that the statement uses, in its order."""
    asked: dict[str, int] = {}

    def integer(name: str) -> int:
        return asked.setdefault(name, numbers[name])

    obligation.statement(integer)
    return asked
