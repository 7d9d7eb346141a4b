"""What a statement builds on is true of all numbers that it speaks of, and some numbers exist."""

from random import Random

import pytest

from spec.obligations import OBLIGATIONS
from spec.obligations.registry import Statement

TRIES = 60_000
WANTED = 40  # numbers that satisfy what is given
OF_RUNS = ("PRV-MAC", "PRV-TOC-1", "PRV-TOC-4", "PRV-RUN")  # of runs that exist: not drawn blindly


def drawn(name: str, random: Random) -> dict[str, int]:
    """Numbers on which to look at an obligation: small, so that boundaries are met often."""
    top = random.choice([3, 8, 30, 300])
    chosen: dict[str, int] = {}

    def integer(name: str) -> int:
        least = 1 if name == "block_size" else 0
        most = 12 * top if name == "limit" else top
        return chosen.setdefault(name, random.randint(least, most))

    OBLIGATIONS[name].statement(integer)
    return chosen


def told(name: str, numbers: dict[str, int]) -> Statement:
    return OBLIGATIONS[name].statement(lambda one: numbers[one])


@pytest.mark.parametrize("name", [one for one in OBLIGATIONS if not one.startswith(OF_RUNS)])
def test_an_obligation_speaks_of_some_numbers_and_its_facts_hold_for_them(name: str) -> None:
    random, met = Random(name), 0
    for _ in range(TRIES):
        numbers = drawn(name, random)
        statement = told(name, numbers)
        if all(statement.given):
            met += 1
            assert all(statement.known), numbers
            assert (not statement.claim) <= (OBLIGATIONS[name].expected != "proven"), numbers
        if met == WANTED:
            break
    assert met == WANTED
