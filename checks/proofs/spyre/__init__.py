"""Proofs about Spyre."""

MODULES = (
    "reservation",
    "overtaking",
    "alone",
    "decode_batch",
    "documented",
    "exact",
    "model_length",
    "monotonicity",
    "padding",
    "peak",
    "block_pool",
    "shipped",
    "judging",
    "definitions",
    "any_batch",
    "any_run",
    "any_shipped",
    "tightness",
)
