"""Planted faults: small wrong versions of each transition, to be switched in one at a time.

The modules hold one function a fault, by what it is about; importing this fills the table.
"""

from tests.checks.faults.spyre import (
    admission,
    blocks,
    decode,
    encoding,
    formulas,
    grammars,
    leaving,
    prefill,
    remembered,
)
from tests.checks.faults.spyre.table import FAULTS

__all__ = [
    "FAULTS",
    "admission",
    "blocks",
    "decode",
    "encoding",
    "formulas",
    "grammars",
    "leaving",
    "prefill",
    "remembered",
]
