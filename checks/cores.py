"""Work side by side on all cores."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future, ProcessPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

_AHEAD = 2  # items for each core that are begun before their turn


def on_all_cores(work: Callable[[Item], Outcome], items: Iterable[Item]) -> Iterator[Outcome]:
    """The outcome for each item, in their order; `work` and what it takes and gives must pickle.

    Items are taken as they are needed, so they may have no end. Who stops asking for outcomes
    stops the work.
    """
    cores = os.cpu_count() or 1
    workers = min(cores, len(items)) if isinstance(items, Sized) else cores
    if workers <= 1:
        yield from map(work, items)
        return
    with ProcessPoolExecutor(workers) as pool:
        begun: deque[Future[Outcome]] = deque()
        try:
            for item in items:
                begun.append(pool.submit(work, item))
                if len(begun) >= _AHEAD * workers:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            for one in begun:
                one.cancel()
