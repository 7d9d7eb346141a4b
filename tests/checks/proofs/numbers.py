"""Numbers on which to look at an obligation, drawn small so that boundaries are met often."""

from collections.abc import Iterator, Mapping
from random import Random

from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.registry import Statement

Numbers = Mapping[str, int]

DIVISORS = ("block_size", "bytes_of_block")  # never zero


def told(name: str, numbers: Numbers) -> Statement:
    """The obligation of these numbers."""
    return OBLIGATIONS[name].statement(lambda one: numbers[one])


def drawn(name: str, tries: int) -> Iterator[tuple[Numbers, Statement]]:
    """Numbers that satisfy what the obligation gives, and its statement of them."""
    random = Random(name)
    for _ in range(tries):
        numbers, statement = _drawn_once(name, random)
        if all(statement.given):
            yield numbers, statement


def _drawn_once(name: str, random: Random) -> tuple[Numbers, Statement]:
    top = random.choice([3, 8, 30, 300])
    chosen: dict[str, int] = {}

    def integer(name: str) -> int:
        least = 1 if name in DIVISORS else 0
        most = 12 * top if name == "limit" else top
        return chosen.setdefault(name, random.randint(least, most))

    return chosen, OBLIGATIONS[name].statement(integer)
