"""Counts, lists and sentences in words."""

from collections.abc import Sequence


def counted(count: int, noun: str) -> str:
    """The count with its noun, singular or plural: 1 step, 2 steps."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def joined(names: Sequence[str]) -> str:
    """The names as a list in a sentence: 0, 1 and 2."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def sentence_case(text: str) -> str:
    """The text with a capital first letter, unless its first word is a name such as vLLM."""
    first = text.partition(" ")[0]
    is_name = any(letter.isupper() for letter in first[1:]) or not first.isalpha()
    return text if is_name else text[:1].upper() + text[1:]
