"""Numbers on which to look at an obligation by name."""

from collections.abc import Iterator

from checks.proofs import sampling
from checks.proofs.obligations import OBLIGATIONS
from checks.proofs.registry import Numbers, Statement


def told(name: str, numbers: Numbers) -> Statement:
    """The obligation of these numbers."""
    return OBLIGATIONS[name].statement(numbers.__getitem__)


def drawn(name: str, tries: int) -> Iterator[tuple[Numbers, Statement]]:
    """Numbers that satisfy what the obligation gives, and its statement of them."""
    return sampling.drawn(OBLIGATIONS[name], tries)
