"""How often the explorers saw what a rule speaks of: its witness, in the graphs on record."""

import json
from collections import Counter
from functools import cache
from math import inf
from pathlib import Path

_EXPLORED = Path(__file__).parent / "recorded" / "explored.json"


def witnessed_edges(rule: str) -> float:
    """On how many explored edges the witness of a rule was seen; infinite where none is known."""
    return _edges().get(rule, inf)


@cache
def _edges() -> Counter[str]:
    edges = Counter[str]()
    for explored in json.loads(_EXPLORED.read_text(encoding="utf-8")).values():
        edges.update(explored["witnesses"])
    return edges
