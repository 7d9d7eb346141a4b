"""What is claimed for every length and batch; importing this fills the registry."""

from spec.obligations import (
    blocks,
    bounded,
    decode,
    documented,
    exact,
    inductive,
    length,
    monotonicity,
    padding,
    peak,
    pool,
    shipped,
    to_come,
)
from spec.obligations.registry import OBLIGATIONS, Obligation, Statement, Verdict

__all__ = [
    "OBLIGATIONS",
    "Obligation",
    "Statement",
    "Verdict",
    "blocks",
    "bounded",
    "decode",
    "documented",
    "exact",
    "inductive",
    "length",
    "monotonicity",
    "padding",
    "peak",
    "pool",
    "shipped",
    "to_come",
]
