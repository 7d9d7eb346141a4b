"""Planted faults of the vLLM V1 machine: small wrong versions, to be switched in one at a time.

The modules hold one function a fault, by what it is about; importing this fills the table.
"""

from tests.checks.faults.vllm_v1 import encoding, flights, formulas, groups, machine, remembered
from tests.checks.faults.vllm_v1.table import FAULTS

__all__ = ["FAULTS", "encoding", "flights", "formulas", "groups", "machine", "remembered"]
