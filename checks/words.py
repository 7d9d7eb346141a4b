"""Counts in words."""


def counted(count: int, noun: str) -> str:
    """The count with its noun, singular or plural: 1 step, 2 steps."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
