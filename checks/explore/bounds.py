"""Limits of a search, and its progress reports and checkpoints."""

from collections.abc import Callable
from time import perf_counter
from typing import Any, TypedDict

from attrs import Factory, define, field, frozen
from attrs.validators import ge, optional

from checks.explore.checkpoint import Checkpoint
from checks.explore.memory import peak_resident_bytes
from checks.explore.result import Progress
from checks.explore.store import Store

_TICK_SECONDS = 0.25
_KEPT_EVERY_SECONDS = 1.0


@frozen
class Bounds:
    """Limits of one search; None is no limit.

    - `max_states`: stop when more states were found; the last state may add all its successors.
    - `max_seconds`: wall-clock time, counted from 0 again after a resume.
    - `max_depth`: states at this depth are checked and not expanded; the length of a walk.
    - `max_memory_bytes`: peak resident memory of the whole process, including what it held before
      the search; measured four times a second.
    - `max_walks`: number of random walks, for the order "random" only.
    """

    max_states: int | None = field(default=None, validator=optional(ge(1)))
    max_seconds: float | None = field(default=None, validator=optional(ge(0)))
    max_depth: int | None = field(default=None, validator=optional(ge(0)))
    max_memory_bytes: int | None = field(default=None, validator=optional(ge(0)))
    max_walks: int | None = field(default=None, validator=optional(ge(1)))


class Following(TypedDict, total=False):
    """Callbacks of a search.

    `progress` is called at most four times a second. `stop` is called before each expansion; the
    search ends when it returns True.
    """

    progress: Callable[[Progress], None] | None
    stop: Callable[[], bool] | None


class Controls(Following, total=False):
    """Callbacks of a search with checkpoints: `keep` receives a checkpoint every second."""

    keep: Callable[[Checkpoint], None] | None
    resume: Checkpoint | None


@define
class Watch:
    """Decides before every expansion whether to stop; reports progress four times a second.

    `keep` is called every second, when no state taken from the queue is left unexpanded.
    """

    bounds: Bounds
    stop: Callable[[], bool] | None
    progress: Callable[[Progress], None] | None
    began: float = Factory(perf_counter)
    keep: Callable[[], None] | None = None
    _next_tick: float = 0.0
    _kept: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the search began or was resumed."""
        return perf_counter() - self.began

    def reason_to_stop(self, store: Store[Any]) -> str | None:
        """The name of the bound that was reached, "stop" if the caller asked for it, or None."""
        bounds = self.bounds
        if bounds.max_states is not None and len(store.seen) > bounds.max_states:
            return "max_states"
        if self.stop is not None and self.stop():
            return "stop"
        seconds = self.seconds
        if bounds.max_seconds is not None and seconds >= bounds.max_seconds:
            return "max_seconds"
        if seconds < self._next_tick:
            return None
        self._next_tick = seconds + _TICK_SECONDS
        if self.progress is not None:
            self.progress(_progress(store, seconds))
        if self.keep is not None and seconds - self._kept >= _KEPT_EVERY_SECONDS:
            self._kept = seconds
            self.keep()
        over = bounds.max_memory_bytes is not None and (
            peak_resident_bytes() > bounds.max_memory_bytes
        )
        return "max_memory_bytes" if over else None


def _progress(store: Store[Any], seconds: float) -> Progress:
    total_seconds = store.seconds + seconds
    return Progress(
        states=len(store.seen),
        transitions=store.transitions,
        depth=store.depth,
        queue=len(store.frontier),
        states_per_second=len(store.seen) / total_seconds,
    )
