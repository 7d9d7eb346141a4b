"""Every documented rule of Spyre once, by section of the texts; importing this fills its registry.

The rules of the other policies are packages in here.
"""

from spec.core.rule import AnyRule, Kind, Source, judge
from spec.spyre.rules import (
    admission,
    blocks,
    decode,
    lifecycle,
    prefill,
    prefix,
    priority,
    shipped,
)
from spec.spyre.rules.registry import REGISTRY, SPYRE, Rule, applicable

__all__ = [
    "REGISTRY",
    "SPYRE",
    "AnyRule",
    "Kind",
    "Rule",
    "Source",
    "admission",
    "applicable",
    "blocks",
    "decode",
    "judge",
    "lifecycle",
    "prefill",
    "prefix",
    "priority",
    "shipped",
]
