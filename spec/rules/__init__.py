"""Every documented rule once, by section of the texts; importing this fills the registry."""

from spec.rules import admission, blocks, decode, lifecycle, prefill, prefix, priority, shipped
from spec.rules.registry import REGISTRY, Kind, Rule, Source, applicable, judge

__all__ = [
    "REGISTRY",
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
