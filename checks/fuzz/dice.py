"""Random draws that come out the same on every machine and under every Python."""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

Value = TypeVar("Value")

_EPISODES = 2**64


class Dice:
    """Built on `Random.random` alone: of `random`, only its sequence is promised not to change."""

    def __init__(self, seed: int, episode: int) -> None:
        """`seed` and `episode`: whole numbers, 0 or more; each pair has a sequence of its own."""
        self._random = Random(seed * _EPISODES + episode).random

    def chance(self, share: float) -> bool:
        """True in `share` of the draws."""
        return self._random() < share

    def between(self, least: int, most: int) -> int:
        """A whole number from `least` to `most`, each equally likely."""
        return least + int(self._random() * (most - least + 1))

    def one_of(self, values: Sequence[Value]) -> Value:
        """One of the values; one that stands there twice is twice as likely."""
        return values[self.between(0, len(values) - 1)]
