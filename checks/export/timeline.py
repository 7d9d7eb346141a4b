"""The timeline of a run, as the common trace viewers open it: Chrome trace events, JSON.

Process 1 holds the steps of the scheduler in one track, process 2 one track for each request with
what it did and when: `waiting`, each `chunk` or the `prefill` of so many tokens, `decode` from one
prefill step of another to the next, `paused`. Counters beside the steps: tkv and volume, or of
other policies than Spyre the tokens computed; free blocks, waiting requests.

One unit of the simulated clock is drawn as one millisecond. Events are written as they end, so
that memory does not grow with the run; viewers sort them themselves. Opens in Perfetto and in
chrome://tracing.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from attrs import define

from checks.export.files import as_line, new_file
from checks.harness.clients import duration_of
from engine.core.clock import CostModel
from spec.core.configuration import PolicyConfig
from spec.core.records import IDLE, PREFILL, SomeState, SomeStep
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Step
from spec.vllm_v1 import records as vllm_v1

_SCHEDULER, _REQUESTS = 1, 2  # process ids
_STEPS = 1  # the thread of the steps
_MICROSECONDS = 1000.0  # drawn for a unit of the simulated clock

Event = dict[str, Any]


@define
class _Span:
    """What a request has been doing, and since when."""

    name: str
    since: float
    track: int


class Timeline:
    """A timeline in the making; the file takes its name when the `with` block ends well."""

    def __init__(
        self,
        path: Path,
        requests: Mapping[str, Request],
        config: PolicyConfig,
        cost: CostModel | None = None,
    ) -> None:
        """`requests` by id: each has its track from its arrival. `cost`: of steps, if absent."""
        self._requests = requests
        self._duration = duration_of(config, cost)
        self._is_rectangular = isinstance(config, SpyreConfig)
        self._spans: dict[str, _Span] = {}
        self._tracks = 0
        self._left: SomeState | None = None
        self._separator = ""
        self._context: AbstractContextManager[TextIO] = new_file(path)

    def __enter__(self) -> Self:
        """Begin the file.

        Raises:
            TraceError: no file can be written there.
        """
        self._file = self._context.__enter__()
        self._file.write('{"displayTimeUnit":"ms","traceEvents":[')
        self._name("process_name", "scheduler", _SCHEDULER)
        self._name("thread_name", "steps", _SCHEDULER, _STEPS)
        self._name("process_name", "requests", _REQUESTS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self._file.write("\n]}\n")
        self._context.__exit__(kind, error, traceback)

    def observe(self, step: SomeStep) -> None:
        """Draw the next step."""
        end = step.time + self._duration(step)
        self._arrive(step)
        for gone in step.aborted:
            self._close(gone, step.time, "aborted")
        if step.kind != IDLE:
            self._step(step, end)
        self._requests_of(step, end)
        self._counters(step, end)
        self._left = step.after

    def _step(self, step: SomeStep, end: float) -> None:
        numbers: Event = {"step": step.index} | self._size(step)
        if step.refusal is not None:
            numbers["prefill refused by"] = step.refusal
        if isinstance(step, Step) and step.chunk is not None:
            numbers["request"] = step.chunk.id
        else:
            numbers["batch"] = len(step.scheduled)
        self._span(step.kind, step.time, end, _SCHEDULER, _STEPS, numbers)

    def _size(self, step: Any) -> dict[str, int]:
        """How large a step was, by the measure of its policy."""
        if self._is_rectangular:
            return {"tkv": step.tkv, "volume": step.volume}
        return {"tokens": sum(step.scheduled.values())}

    def _arrive(self, step: SomeStep) -> None:
        """Whoever waits and has no track yet gets one, at the moment of its arrival."""
        if self._left is not None and self._left.waiting is step.before.waiting:
            return
        for one in reversed(step.before.waiting):
            if one.id in self._spans:
                if isinstance(step, Step):
                    break  # newcomers stand at the end, but for vLLM V1's priorities
                continue
            arrival = self._requests[one.id].arrival_time
            since = step.time if arrival is None else min(arrival, step.time)
            self._tracks += 1
            self._spans[one.id] = _Span("waiting", since, self._tracks)
            self._name("thread_name", f"request {one.id}", _REQUESTS, self._tracks)

    def _requests_of(self, step: SomeStep, end: float) -> None:
        """What the step was for each request that it moved."""
        for request_id, name in _prefills(step).items():
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
        """Draw what the request did until now; `how` it has left, if it has."""
        span = self._spans.get(request_id)
        if span is None:  # the client left before its request came
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
        for at, values in ((step.time, self._size(step)), (end, free | waiting)):
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


_AFTERWARDS = {"pause": "paused", "resume": "decode", "preempt": "waiting"}


def _prefills(step: SomeStep) -> dict[str, str]:
    """Who computed a part of its prompt in the step, and what to call it."""
    if isinstance(step, Step) and step.chunk is not None:
        return {step.chunk.id: f"chunk {step.chunk.chunk + 1} of {step.chunk.chunks}"}
    computing = step.scheduled if step.kind == PREFILL else {}
    if isinstance(step, vllm_v1.Step):
        rows = {one.id: one for one in step.planned.running}
        computing = {name: tokens for name, tokens in computing.items() if not rows[name].decodes}
    return {name: f"prefill of {tokens} tokens" for name, tokens in computing.items()}
