"""Timelines of runs as Chrome trace events (JSON), for Perfetto and chrome://tracing.

Process 1 has the scheduler's steps in one track, process 2 a track for each request with its
phases: `waiting`, each `chunk` or `prefill`, `decode` between two prefill steps of other requests,
`paused`. Counters: the size of steps in the policy's measure, free blocks, waiting requests.

One unit of the simulated clock is drawn as one millisecond. Each event is written when it ends, so
that memory does not grow with the run; viewers sort the events.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from attrs import define, field

from checks.export.files import as_line, new_file
from checks.export.policy import presentation_of
from checks.export.trace.codec import Codec
from engine.core.clock import CostModel
from spec.core.configuration import PolicyConfig
from spec.core.records import IDLE, SomeState, SomeStep
from spec.core.requests import Request

_SCHEDULER, _REQUESTS = 1, 2  # process ids
_STEPS = 1  # the thread of the steps
_MICROSECONDS = 1000.0  # drawn for a unit of the simulated clock
_AFTERWARDS = {"pause": "paused", "resume": "decode", "preempt": "waiting"}

Event = dict[str, Any]


@contextmanager
def new_timeline(
    path: Path,
    requests: Mapping[str, Request],
    config: PolicyConfig,
    cost: CostModel | None = None,
) -> Iterator["Timeline"]:
    """A timeline that observes steps; the file is complete when the `with` block ends.

    `requests`: by id; each has a track from its arrival. `cost`: by default only the step times.

    Raises:
        OSError: the file cannot be written.
    """
    with new_file(path) as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[')
        shown = presentation_of(config.policy)
        yield Timeline(file, requests, shown.codec, shown.duration_of(config, cost))
        file.write("\n]}\n")


@define
class _Span:
    """The current phase of a request, and its start."""

    name: str
    since: float
    track: int


@define
class Timeline:
    """Writes the steps of a run into a file, see `new_timeline`."""

    _file: TextIO
    _requests: Mapping[str, Request]
    _codec: Codec[Any, Any]
    _duration: Callable[[SomeStep], float]
    _spans: dict[str, _Span] = field(factory=dict)
    _tracks: int = 0
    _left: SomeState | None = None
    _separator: str = ""

    def __attrs_post_init__(self) -> None:
        self._name("process_name", "scheduler", _SCHEDULER)
        self._name("thread_name", "steps", _SCHEDULER, _STEPS)
        self._name("process_name", "requests", _REQUESTS)

    def observe(self, step: SomeStep) -> None:
        """Write the next step."""
        end = step.time + self._duration(step)
        self._arrive(step)
        for gone in step.aborted:
            self._close(gone, step.time, "aborted")
        if step.kind != IDLE:
            self._step(step, end)
        self._note_requests(step, end)
        self._counters(step, end)
        self._left = step.after

    def _step(self, step: SomeStep, end: float) -> None:
        numbers: Event = {"step": step.index} | self._codec.size(step)
        if step.refusal is not None:
            numbers["prefill refused by"] = step.refusal
        numbers |= self._codec.served(step)
        self._span(step.kind, step.time, end, _SCHEDULER, _STEPS, numbers)

    def _arrive(self, step: SomeStep) -> None:
        """Start a track for each request that arrived."""
        before, left = step.before, self._left
        at_most = len(before.waiting)
        if left is not None:
            at_most += len(before.aborted) - len(left.aborted) - len(left.waiting)
        for request in reversed(before.waiting):  # arrivals are usually at the end
            if not at_most:
                break
            if request.id in self._spans:
                continue
            at_most -= 1
            asked = self._requests[request.id]
            arrival = None if asked.after else asked.arrival_time
            self._open(request.id, step.time if arrival is None else min(arrival, step.time))

    def _open(self, request_id: str, since: float) -> None:
        """Start the track of a request, which waits."""
        self._tracks += 1
        self._spans[request_id] = _Span("waiting", since, self._tracks)
        self._name("thread_name", f"request {request_id}", _REQUESTS, self._tracks)

    def _note_requests(self, step: SomeStep, end: float) -> None:
        """Write the phases that the step begins or ends."""
        for request_id, name in self._codec.prefills(step).items():
            if request_id not in self._spans:  # it waited elsewhere, such as for a grammar
                self._open(request_id, step.time)
            self._close(request_id, step.time)
            self._spans[request_id].name = name
            self._close(request_id, end)
            done = request_id in step.outputs
            self._spans[request_id].name = "decode" if done else "prefill waits"
        for event in step.events:
            if event.transition in _AFTERWARDS:
                self._close(event.id, step.time)
                self._spans[event.id].name = _AFTERWARDS[event.transition]
        for gone in step.finished:
            self._close(gone, end, "finished")

    def _close(self, request_id: str, time: float, how: str | None = None) -> None:
        """Write the current phase of the request; `how`: "finished" or "aborted" if it left."""
        span = self._spans.get(request_id)
        if span is None:  # the client left before the request arrived
            return
        if time > span.since:
            self._span(span.name, span.since, time, _REQUESTS, span.track, {})
        span.since = time
        if how is not None:
            del self._spans[request_id]
            at = {"ts": time * _MICROSECONDS, "pid": _REQUESTS, "tid": span.track, "s": "t"}
            self._event({"name": how, "ph": "i"} | at)

    def _counters(self, step: SomeStep, end: float) -> None:
        waiting = {"waiting": len(step.after.waiting)}
        free = {"free blocks": len(step.after.pool.free)}
        for at, values in ((step.time, self._codec.size(step)), (end, free | waiting)):
            for name, value in values.items():
                place = {"ts": at * _MICROSECONDS, "pid": _SCHEDULER}
                self._event({"name": name, "ph": "C", "args": {name: value}} | place)

    # --- the file -------------------------------------------------------------------------------

    def _span(
        self, name: str, begin: float, end: float, process: int, track: int, args: Event
    ) -> None:
        at = {"ts": begin * _MICROSECONDS, "dur": (end - begin) * _MICROSECONDS}
        self._event({"name": name, "ph": "X"} | at | {"pid": process, "tid": track, "args": args})

    def _name(self, what: str, name: str, process: int, track: int = 0) -> None:
        args = {"name": name}
        self._event({"name": what, "ph": "M", "pid": process, "tid": track, "args": args})

    def _event(self, event: Event) -> None:
        self._file.write(f"{self._separator}\n{as_line(event)}")
        self._separator = ","
