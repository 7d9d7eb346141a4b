"""Planted faults of the nano-vLLM machine: small wrong versions, to be switched in one at a time.

The modules hold one function a fault, by what it is about; importing this fills the table.
"""

from tests.checks.faults.nano_vllm import chunks, formulas, machine, remembered
from tests.checks.faults.nano_vllm.table import FAULTS

__all__ = ["FAULTS", "chunks", "formulas", "machine", "remembered"]
