"""Work side by side on all cores."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import TypeVar

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")

_AHEAD = 2  # items for each core that are not done; the next is at hand when one is


def nothing() -> None:
    """Cores need no preparation."""


def on_all_cores(
    work: Callable[[Item], Outcome],
    items: Iterable[Item],
    prepare: Callable[[], None] = nothing,
) -> Iterator[Outcome]:
    """The outcome for each item, in their order; `work` and what it takes and gives must pickle.

    `prepare` is done once for each core, side by side, before the first item is taken.

    Items are taken as they are needed, so they may have no end. A long one keeps its core only:
    others go on, and their outcomes wait for their turn. Who stops asking for outcomes stops the
    work.
    """
    cores = os.cpu_count() or 1
    workers = min(cores, len(items)) if isinstance(items, Sized) else cores
    if workers <= 1:
        prepare()
        yield from map(work, items)
        return
    with ProcessPoolExecutor(workers) as pool:
        for ready in [pool.submit(prepare) for _ in range(workers)]:
            ready.result()
        begun: deque[Future[Outcome]] = deque()
        try:
            for item in items:
                begun.append(pool.submit(work, item))
                under_way = [one for one in begun if not one.done()]
                if len(under_way) >= _AHEAD * workers:
                    wait(under_way, return_when=FIRST_COMPLETED)
                while begun and begun[0].done():
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        finally:
            for one in begun:
                one.cancel()
