"""Planted faults: small wrong versions of each transition, to be switched in one at a time.

The modules hold one function a fault, by what it is about; importing this fills the table.
"""

from tests.checks.faults import admission, blocks, decode, leaving, prefill
from tests.checks.faults.table import FAULTS, INSTANCES

__all__ = [
    "FAULTS",
    "INSTANCES",
    "admission",
    "blocks",
    "decode",
    "leaving",
    "prefill",
]
