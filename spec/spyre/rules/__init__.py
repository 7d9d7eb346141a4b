"""Every rule of Spyre once, by section of the texts; importing this fills its registry."""

from spec.spyre.rules import (  # noqa: F401
    admission,
    blocks,
    decode,
    encoding,
    grammars,
    lifecycle,
    prefill,
    prefix,
    priority,
    shipped,
)
from spec.spyre.rules.registry import REGISTRY, SPYRE, Rule, applicable

__all__ = ["REGISTRY", "SPYRE", "Rule", "applicable"]
