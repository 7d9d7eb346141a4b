"""What drafts or speculates for a scheduler: which of a request's tokens it foresees.

A text of ones and zeros that repeats itself: "110" foresees the first two of every three tokens.
"""

from checks.harness.choices import Choices


def foresight(choices: Choices, share: float) -> str:
    """A random one; `share` of its tokens are foreseen."""
    return "".join("01"[choices.chance(share)] for _ in range(choices.between(1, 6)))


def foreseen(foresight: str, first: int, count: int) -> int:
    """Of `count` tokens from the one numbered `first` on, how many up to the first wrong one."""
    places = range(first, first + count)
    wrong = (n for n, place in enumerate(places) if foresight[place % len(foresight)] == "0")
    return next(wrong, count)
