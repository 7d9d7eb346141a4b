"""The clients of a workload: which requests arrive and which leave before a step."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from checks.harness.system import Action, Step
from spec.core.records import IDLE
from spec.core.requests import Request

LONG_GAP = 1_000  # idle steps; the steps of a shorter gap are taken one by one


def _latest_first(requests: Iterable[Request], when: Callable[[Request], Any]) -> list[Request]:
    """The requests for which `when` is not None, the latest first."""
    return sorted((request for request in requests if when(request) is not None), key=when)[::-1]


class Clients:
    """The arrivals and aborts of a workload, each returned once.

    Take the arrivals before a step first, then the aborts. A request with an arrival step arrives
    before that step, a request with an arrival time before the first step that begins at or after
    it.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        """No request has arrived yet."""
        # The next request is the last element.
        self._by_time = _latest_first(requests, lambda request: request.arrival_time)
        self._by_step = _latest_first(
            (request for request in requests if request.arrival_time is None),
            lambda request: request.arrival,
        )
        self._leaving = _latest_first(requests, lambda request: request.abort_at)
        self._cancelled: set[str] = set()

    @property
    def pending(self) -> bool:
        """True if a request has not arrived yet."""
        return bool(self._by_time or self._by_step)

    @property
    def are_through(self) -> bool:
        """True if no arrival and no abort is left."""
        return not self.pending and not self._leaving

    def next_time(self) -> float:
        """The time of the next arrival; 0 if arrivals are given by step, or none is left."""
        if self._by_step or not self._by_time:
            return 0.0
        return self._by_time[-1].arrival_time or 0.0

    def idle_steps(self, index: int, time: float, step_time: float) -> int:
        """The number of steps from `index` on before the next arrival or abort.

        `step_time`: the duration of an idle step.
        """
        moments = [float(queue[-1].arrival - index) for queue in [self._by_step] if queue]
        moments += [float((queue[-1].abort_at or 0) - index) for queue in [self._leaving] if queue]
        if self._by_time and step_time > 0:
            moments.append(((self._by_time[-1].arrival_time or 0.0) - time) // step_time)
        return max(0, int(min(moments, default=0.0)))

    def arriving(self, index: int, time: float) -> Iterator[str]:
        """The requests that arrive before step `index`, which begins at `time`."""
        while self._by_step and self._by_step[-1].arrival <= index:
            yield self._pop_next(self._by_step)
        while self._by_time and (self._by_time[-1].arrival_time or 0.0) <= time:
            yield self._pop_next(self._by_time)

    def leaving(self, index: int) -> Iterator[str]:
        """The requests whose clients leave before step `index`.

        A request that has not arrived by then never arrives.
        """
        while self._leaving and (self._leaving[-1].abort_at or 0) <= index:
            leaver = self._leaving.pop().id
            self._cancelled.add(leaver)
            self._drop_cancelled()
            yield leaver

    def _pop_next(self, queue: list[Request]) -> str:
        request = queue.pop()
        self._drop_cancelled()
        return request.id

    def _drop_cancelled(self) -> None:
        """Remove cancelled requests at the ends, so that the next request of each queue arrives."""
        for queue in (self._by_time, self._by_step):
            while queue and queue[-1].id in self._cancelled:
                queue.pop()


class Workload:
    """The actions of a workload's clients until all requests have arrived and left.

    The clock is at the end of the last step; while no request is present it jumps to the next
    arrival. In a gap of LONG_GAP idle steps or more only the first is taken; the others are counted
    as `skipped`. Pass each step to `after`, or its duration to `advance`, before taking the next
    action.
    """

    def __init__(
        self, requests: Sequence[Request], duration: Callable[[Step], float] = lambda _step: 0.0
    ) -> None:
        """`duration`: the simulated time that a step takes, for `after`."""
        self._clients = Clients(requests)
        self._duration = duration
        self._index, self._time, self._idle = 0, 0.0, True
        self._idle_time: float | None = None  # of the last step, if it was idle

    def __iter__(self) -> Iterator[Action]:
        """The actions, until all requests have arrived and left."""
        clients = self._clients
        while clients.pending or not self._idle:
            if self._idle:
                self._time = max(self._time, clients.next_time())
            skipped = self._skipped()
            arriving = tuple(clients.arriving(self._index, self._time))
            leaving = tuple(clients.leaving(self._index))
            yield Action(arriving, leaving, time=self._time, skipped=skipped)

    def after(self, step: Step) -> None:
        """Advance number and clock by the step that followed the last action."""
        self.advance(step.kind, self._duration(step), is_idle=step.after.is_idle)

    def advance(self, kind: str, took: float, *, is_idle: bool) -> None:
        """Advance by a step of this kind and duration; `is_idle`: it left no request."""
        self._index += 1
        self._idle = is_idle
        self._time += took
        self._idle_time = took if is_idle and kind == IDLE else None

    @property
    def is_through(self) -> bool:
        """True if no arrival and no abort is left."""
        return self._clients.are_through

    def _skipped(self) -> int:
        """Advance number and clock over a long gap; returns its number of idle steps, or 0."""
        if self._idle_time is None:
            return 0
        idle_steps = self._clients.idle_steps(self._index, self._time, self._idle_time)
        if idle_steps < LONG_GAP:
            return 0
        self._index += idle_steps
        self._time += idle_steps * self._idle_time
        return idle_steps
