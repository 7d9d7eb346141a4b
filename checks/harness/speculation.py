"""Drafters: which output tokens of a request a drafter predicts correctly.

A repeated text of ones and zeros: "110" predicts the first two of every three tokens.
"""

from checks.harness.choices import Choices


def foresight(choices: Choices, share: float) -> str:
    """A random pattern; each token is predicted correctly with probability `share`."""
    return "".join("01"[choices.chance(share)] for _ in range(choices.between(1, 6)))


def foreseen(foresight: str, first: int, count: int) -> int:
    """The number of correct drafts before the first wrong one, of `count` from token `first`."""
    places = range(first, first + count)
    wrong = (n for n, place in enumerate(places) if foresight[place % len(foresight)] == "0")
    return next(wrong, count)
