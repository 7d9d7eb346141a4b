"""Planted faults of the vLLM V0 machine: small wrong versions, to be switched in one at a time.

The modules hold one function a fault, by what it is about; importing this fills the table.
"""

from tests.checks.faults.vllm_v0 import (
    blocks,
    decisions,
    formulas,
    readings,
    remembered,
    results,
    transitions,
)
from tests.checks.faults.vllm_v0.table import FAULTS

__all__ = ["FAULTS", "blocks", "decisions", "formulas", "readings", "remembered", "results"]
__all__ += ["transitions"]
