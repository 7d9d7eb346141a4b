"""Recorded counts of edges on which the explorer saw a rule's witness."""

import json
from collections import Counter
from functools import cache
from math import inf
from pathlib import Path

_EXPLORED = Path(__file__).parent / "recorded" / "explored.json"


def witnessed_edges(rule: str) -> float:
    """The number of explored edges with a rule's witness; infinite if none is on record."""
    return _edges().get(rule, inf)


@cache
def _edges() -> Counter[str]:
    edges = Counter[str]()
    for explored in json.loads(_EXPLORED.read_text(encoding="utf-8")).values():
        edges.update(explored["witnesses"])
    return edges
