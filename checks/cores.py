"""Work side by side on all cores."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


def on_all_cores(work: Callable[[Item], Outcome], items: Sequence[Item]) -> Iterator[Outcome]:
    """The outcome for each item, in their order; `work` and what it takes and gives must pickle."""
    workers = min(os.cpu_count() or 1, len(items))
    if workers <= 1:
        yield from map(work, items)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(work, items)
