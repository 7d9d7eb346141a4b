"""Counts in words."""


def counted(count: int, what: str) -> str:
    """So many of them, in words."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
