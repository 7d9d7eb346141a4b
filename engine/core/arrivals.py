"""The arrivals of a workload: by step, by time on the simulated clock, or after another request."""

from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Iterator

from spec.core.requests import Request


class Arrivals:
    """The requests that have not arrived yet; each arrives once.

    A request with an arrival step arrives before that step, a request with an arrival time before
    the first step that begins at or after it. The time of a request that follows an earlier one
    counts from the end of that one; if that one is cancelled, the request never arrives. Nor does
    the next turn of a session that is cancelled before its turn ended.
    """

    def __init__(self, requests: Iterable[Request]) -> None:
        """No request has arrived yet."""
        # Both lists are popped from the end.
        self._by_step: list[tuple[int, str]] = []
        self._by_time: list[tuple[float, str]] = []
        self._followers: defaultdict[str, list[Request]] = defaultdict(list)
        self._cancelled: set[str] = set()
        self._turns: dict[str, str] = {}
        earlier: set[str] = set()
        for request in requests:
            if request.continued_by is not None:
                self._turns[request.id] = request.continued_by
            if request.after in earlier:
                self._followers[request.after].append(request)
            elif request.arrival_time is None:
                self._by_step.append((request.arrival, request.id))
            else:
                self._by_time.append((request.arrival_time, request.id))
            earlier.add(request.id)
        for queue in (self._by_step, self._by_time):
            queue.sort(key=_moment)
            queue.reverse()

    def __bool__(self) -> bool:
        """True if a request has not arrived yet."""
        return bool(self._by_time or self._by_step or self._followers)

    @property
    def next_step(self) -> int | None:
        """The step before which the next request with an arrival step arrives."""
        return self._by_step[-1][0] if self._by_step else None

    @property
    def next_time(self) -> float | None:
        """The time of the next request with an arrival time."""
        return self._by_time[-1][0] if self._by_time else None

    def due(self, index: int, time: float) -> Iterator[tuple[str, float]]:
        """The requests that arrive before step `index`, which begins at `time`, and when."""
        while self._by_step and self._by_step[-1][0] <= index:
            yield self._by_step.pop()[1], time
            self._drop_cancelled()
        while self._by_time and self._by_time[-1][0] <= time:
            moment, request_id = self._by_time.pop()
            yield request_id, moment
            self._drop_cancelled()

    def finish(self, request_id: str, time: float) -> None:
        """The request ended at `time`: those that follow it arrive their arrival time later."""
        self._turns.pop(request_id, None)
        for follower in self._followers.pop(request_id, ()):
            if follower.id in self._cancelled:
                self.cancel(follower.id)
            else:
                moment = time + (follower.arrival_time or 0.0)
                insort(self._by_time, (moment, follower.id), key=lambda entry: -entry[0])

    def cancel(self, request_id: str) -> None:
        """The client has gone: the request does not arrive any more, nor those that follow it."""
        gone = [request_id]
        for name in gone:
            gone += [follower.id for follower in self._followers.pop(name, ())]
            gone += [turn for turn in (self._turns.pop(name, None),) if turn is not None]
        self._cancelled.update(gone)
        self._drop_cancelled()

    def _drop_cancelled(self) -> None:
        """Remove cancelled requests at the ends, so that the next request of each queue arrives."""
        for queue in (self._by_time, self._by_step):
            while queue and queue[-1][1] in self._cancelled:
                queue.pop()


def _moment(arrival: tuple[float, str]) -> float:
    return arrival[0]
