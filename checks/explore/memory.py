"""Memory: the bytes that the explorer keeps for each state, and the peak of the process."""

import gc
import resource
import sys
from collections.abc import Iterable
from itertools import chain, islice
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from checks.explore.store import Store

_RUNS, _RUN_STATES = 16, 128
_SHARED_BY_ALL = (type, ModuleType, FunctionType, BuiltinFunctionType)
_INDEX_BYTES = sys.getsizeof(2**20)


def bytes_per_state(store: Store[Any]) -> float:
    """The size of all stores divided by the number of states.

    Dictionary, arrays, indices and edges are counted exactly. The canonical states are measured
    with all objects that they refer to, each object once, in a sample: 16 runs of 128 consecutive
    states in the order of discovery, or all states if there are not more. Objects shared with
    states outside the sample are counted too often, so that the figure is an overestimate. The
    frontier and the model's own caches are not counted.
    """
    states = len(store.seen)
    arrays: list[object] = [store.parents, store.ordinals, store.depths, *store.marks]
    if store.edges is not None:
        arrays += [store.edges.begins, store.edges.sizes, store.edges.targets]
    fixed = sys.getsizeof(store.seen) + sum(map(sys.getsizeof, arrays))
    sample = list(_sample(store))
    return fixed / states + _INDEX_BYTES + deep_bytes(sample) / len(sample)


def _sample(store: Store[Any]) -> Iterable[object]:
    states = len(store.seen)
    if states <= _RUNS * _RUN_STATES:
        return store.seen
    stride = states // _RUNS
    return chain.from_iterable(
        islice(store.seen, start, start + _RUN_STATES) for start in range(0, stride * _RUNS, stride)
    )


def deep_bytes(roots: Iterable[object]) -> int:
    """The size of objects and of everything that they refer to, each once, without classes."""
    counted: set[int] = set()
    stack = list(roots)
    total = 0
    while stack:
        item = stack.pop()
        if id(item) not in counted and not isinstance(item, _SHARED_BY_ALL):
            counted.add(id(item))
            total += sys.getsizeof(item)
            stack.extend(gc.get_referents(item))
    return total


def peak_resident_bytes() -> int:
    """The most memory that the process has held so far, as the system counts it."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
