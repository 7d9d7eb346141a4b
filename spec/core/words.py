"""Values in the messages of violated rules."""

from collections.abc import Mapping
from typing import Any

from attrs import fields


def by_name(values: Mapping[Any, Any]) -> str:
    """Each value behind its name: "(0: 2, 1: 1)"."""
    named = ", ".join(f"{name}: {value}" for name, value in values.items())
    return f"({named})" if named else "none"


def changes(was: Any, now: Any) -> str:
    """The fields in which a record differs from what it was: "computed 3 -> 2"."""
    if now is None:
        return "gone"
    both = ((key.name, getattr(was, key.name), getattr(now, key.name)) for key in fields(type(was)))
    return ", ".join(f"{name} {old} -> {new}" for name, old, new in both if old != new)
