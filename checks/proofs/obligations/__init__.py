"""What is claimed for every length and batch; importing this fills the registry."""

from checks.proofs.nano_vllm import admission as nano_vllm_admission
from checks.proofs.nano_vllm import blocks as nano_vllm
from checks.proofs.registry import OBLIGATIONS, Obligation, Statement, Verdict
from checks.proofs.spyre import (
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
from checks.proofs.vllm_v1 import blocks as vllm_v1_blocks
from checks.proofs.vllm_v1 import budget as vllm_v1
from checks.proofs.vllm_v1 import drafts as vllm_v1_drafts

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
    "nano_vllm",
    "nano_vllm_admission",
    "padding",
    "peak",
    "pool",
    "shipped",
    "to_come",
    "vllm_v1",
    "vllm_v1_blocks",
    "vllm_v1_drafts",
]
