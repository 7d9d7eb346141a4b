"""The clients of a workload: which requests arrive and which leave before a step."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from checks.harness.system import Action, Step
from engine.core.arrivals import Arrivals
from spec.core.records import IDLE
from spec.core.requests import Request

LONG_GAP = 1_000  # idle steps; the steps of a shorter gap are taken one by one


class Clients:
    """The arrivals and aborts of a workload, each returned once.

    Take the arrivals before a step first, then the aborts; pass the step to `after`.
    """

    def __init__(self, requests: Sequence[Request]) -> None:
        """No request has arrived yet."""
        self._arrivals = Arrivals(requests)
        leaving = [
            (step, request.id) for request in requests if (step := request.abort_at) is not None
        ]
        self._leaving = sorted(leaving, key=lambda abort: abort[0])[::-1]  # popped from the end

    @property
    def pending(self) -> bool:
        """True if a request has not arrived yet."""
        return bool(self._arrivals)

    @property
    def are_through(self) -> bool:
        """True if no arrival and no abort is left."""
        return not self.pending and not self._leaving

    def next_time(self) -> float:
        """The time of the next arrival; 0 if arrivals are given by step, or none is left."""
        return 0.0 if self._arrivals.next_step is not None else self._arrivals.next_time or 0.0

    def idle_steps(self, index: int, time: float, step_time: float) -> int:
        """The number of steps from `index` on before the next arrival or abort.

        `step_time`: the duration of an idle step.
        """
        step, moment = self._arrivals.next_step, self._arrivals.next_time
        moments = [] if step is None else [float(step - index)]
        moments += [float(self._leaving[-1][0] - index)] if self._leaving else []
        if moment is not None and step_time > 0:
            moments.append((moment - time) // step_time)
        return max(0, int(min(moments, default=0.0)))

    def arriving(self, index: int, time: float) -> Iterator[str]:
        """The requests that arrive before step `index`, which begins at `time`."""
        for request_id, _ in self._arrivals.due(index, time):
            yield request_id

    def leaving(self, index: int) -> Iterator[str]:
        """The requests whose clients leave before step `index`.

        A request that has not arrived by then never arrives.
        """
        while self._leaving and self._leaving[-1][0] <= index:
            _, leaver = self._leaving.pop()
            self._arrivals.cancel(leaver)
            yield leaver

    def after(self, finished: Iterable[str], end: float) -> None:
        """Let the requests come that follow these, which ended at the time `end`."""
        for request_id in finished:
            self._arrivals.finish(request_id, end)


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
        self.advance(step.kind, self._duration(step), step.finished, is_idle=step.after.is_idle)

    def advance(self, kind: str, took: float, finished: Iterable[str], *, is_idle: bool) -> None:
        """Advance by a step of this kind and duration; `is_idle`: it left no request."""
        self._index += 1
        self._idle = is_idle
        self._time += took
        self._clients.after(finished, self._time)
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
