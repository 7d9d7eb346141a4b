"""When a search has to stop before its end, and how it shows that it is alive."""

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

    - `max_states`: stop once more states than this were found (by up to one state's successors).
    - `max_seconds`: of wall-clock time, counted anew after a resume.
    - `max_depth`: states this many steps away are checked and not expanded; the length of a walk.
    - `max_memory_bytes`: on the peak resident memory of the whole process, looked at four times
      a second; what the process held before the search counts too.
    - `max_walks`: number of random walks, for the order "random" only.
    """

    max_states: int | None = field(default=None, validator=optional(ge(1)))
    max_seconds: float | None = field(default=None, validator=optional(ge(0)))
    max_depth: int | None = field(default=None, validator=optional(ge(0)))
    max_memory_bytes: int | None = field(default=None, validator=optional(ge(0)))
    max_walks: int | None = field(default=None, validator=optional(ge(1)))


class Following(TypedDict, total=False):
    """How the caller of a search follows it.

    `progress` is called at most four times a second. `stop` is asked before each expansion whether
    to end.
    """

    progress: Callable[[Progress], None] | None
    stop: Callable[[], bool] | None


class Controls(Following, total=False):
    """How the caller of a search also keeps it: `keep` is given a checkpoint every second."""

    keep: Callable[[Checkpoint], None] | None
    resume: Checkpoint | None


@define
class Watch:
    """Asked before every expansion whether to stop; reports progress four times a second.

    `keep` is called every second, when all that was taken from the queue is expanded.
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
        """Since the search began or was resumed."""
        return perf_counter() - self.began

    def reason_to_stop(self, store: Store[Any]) -> str | None:
        """The name of a bound that was met, "stop" if the caller asked for it, or None."""
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
