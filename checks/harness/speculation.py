"""Drafters: which output tokens of a request a drafter predicts, and which of these correctly.

A repeated text of ones and zeros: "110" predicts the first two of every three tokens. For a token
with "-" nothing is proposed, and so for those behind it.
"""

from checks.harness.choices import Choices


def foresight(choices: Choices, share: float) -> str:
    """A random pattern; each token is predicted correctly with probability `share`."""
    return "".join("01"[choices.chance(share)] for _ in range(choices.between(1, 6)))


def foreseen(foresight: str, first: int, count: int) -> int:
    """The number of correct drafts before the first wrong one, of `count` from token `first`."""
    return _until(foresight, "0-", first, count)


def proposed(foresight: str, first: int, most: int) -> int:
    """The number of drafts, right or wrong, that are proposed from token `first` on."""
    return _until(foresight, "-", first, most)


def _until(foresight: str, ends: str, first: int, count: int) -> int:
    """The number of places before the first with one of these signs, of `count` from `first`."""
    places = range(first, first + count)
    found = (n for n, place in enumerate(places) if foresight[place % len(foresight)] in ends)
    return next(found, count)
