"""The clients of a workload: which requests arrive and which leave before a step."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from checks.harness.system import Action, Step
from spec.core.records import IDLE
from spec.core.requests import Request

LONG_GAP = 1_000  # idle steps; shorter ones are taken one by one


def _latest_first(requests: Iterable[Request], when: Callable[[Request], Any]) -> list[Request]:
    """The requests for which there is such a moment, the earliest last."""
    return sorted((request for request in requests if when(request) is not None), key=when)[::-1]


class Clients:
    """What the clients of a workload do between the steps, each thing once.

    Before a step first the arriving are taken, then the leaving. A request with a step number
    arrives before that step, one with a time before the first step that begins then or later.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        """All `requests` are yet to arrive."""
        # The next one last: by time, and by step number.
        self._by_time = _latest_first(requests, lambda request: request.arrival_time)
        self._by_step = _latest_first(
            (request for request in requests if request.arrival_time is None),
            lambda request: request.arrival,
        )
        self._leaving = _latest_first(requests, lambda request: request.abort_at)
        self._cancelled: set[str] = set()

    @property
    def pending(self) -> bool:
        """True if a request has yet to arrive."""
        return bool(self._by_time or self._by_step)

    @property
    def are_through(self) -> bool:
        """True if no arrival and no departure is left."""
        return not self.pending and not self._leaving

    def next_time(self) -> float:
        """The next arrival on the clock; 0 if the next ones are given by step."""
        if self._by_step or not self._by_time:
            return 0.0
        return self._by_time[-1].arrival_time or 0.0

    def idle_steps(self, index: int, time: float, step_time: float) -> int:
        """Steps before which nothing happens, from step `index` on; each takes so long."""
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
        """The requests whose clients go away before step `index`.

        A request that has not arrived by then never will.
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
        """So that no step waits for a client that has gone: the next ones are sure to come."""
        for queue in (self._by_time, self._by_step):
            while queue and queue[-1].id in self._cancelled:
                queue.pop()


class Workload:
    """The actions of a workload's clients until all requests have arrived and left.

    The clock stands where the steps so far end; while no request is there it is put forward to the
    next arrival. Of many idle steps before an arrival the first is taken, the others are numbered
    only. So the system's steps must be shown, by `after`, before the next action is taken.
    """

    def __init__(self, requests: Sequence[Request], duration: Callable[[Step], float]) -> None:
        """`duration`: of a step on the simulated clock."""
        self._clients = Clients(requests)
        self._duration = duration
        self._index, self._time, self._idle = 0, 0.0, True
        self._idle_time: float | None = None  # of the last step, if it was idle

    def __iter__(self) -> Iterator[Action]:
        """The next action, as long as there is a request to wait for."""
        clients = self._clients
        while clients.pending or not self._idle:
            if self._idle:
                self._time = max(self._time, clients.next_time())
            skipped = self._skipped()
            arriving = tuple(clients.arriving(self._index, self._time))
            leaving = tuple(clients.leaving(self._index))
            yield Action(arriving, leaving, time=self._time, skipped=skipped)

    def after(self, step: Step) -> None:
        """Take note of the step that the last action led to."""
        self._index += 1
        self._idle = step.after.is_idle
        took = self._duration(step)
        self._time += took
        self._idle_time = took if self._idle and step.kind == IDLE else None

    @property
    def is_through(self) -> bool:
        """True if no arrival and no departure is left."""
        return self._clients.are_through

    def _skipped(self) -> int:
        """Put number and clock forward over a long gap; the idle steps that it has."""
        if self._idle_time is None:
            return 0
        idle_steps = self._clients.idle_steps(self._index, self._time, self._idle_time)
        if idle_steps < LONG_GAP:
            return 0
        self._index += idle_steps
        self._time += idle_steps * self._idle_time
        return idle_steps
