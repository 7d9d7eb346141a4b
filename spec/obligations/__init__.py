"""What is claimed for every length and batch; importing this fills the registry."""

from spec.obligations import (
    blocks,
    decode,
    documented,
    exact,
    length,
    monotonicity,
    padding,
    peak,
    pool,
    shipped,
)
from spec.obligations.registry import OBLIGATIONS, Obligation, Statement, Verdict

__all__ = [
    "OBLIGATIONS",
    "Obligation",
    "Statement",
    "Verdict",
    "blocks",
    "decode",
    "documented",
    "exact",
    "length",
    "monotonicity",
    "padding",
    "peak",
    "pool",
    "shipped",
]
