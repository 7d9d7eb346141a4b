"""A run as `vllm bench serve --save-result --save-detailed` writes one.

Names, order and units are those of that tool: seconds for single requests, milliseconds for
statistics. A unit of the simulated clock is written as a second.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from attrs import define, field

from checks.export.files import new_file
from engine.core.arrivals import Arrivals
from engine.core.metrics import Summary
from spec.core.records import SomeStep
from spec.core.requests import Request

_MS = 1_000  # of a second


@define
class _Sent:
    """A request that has arrived, as its client sees it. Times are on the simulated clock.

    `moments`: when tokens came, those of one step together. `error`: why it has no whole answer.
    """

    prompt_len: int
    start: float
    moments: list[float] = field(factory=list)
    tokens: int = 0
    end: float = 0.0
    error: str = "unfinished"

    @property
    def ttft(self) -> float:
        return self.moments[0] - self.start if self.moments else 0.0

    @property
    def itls(self) -> list[float]:
        return np.diff(self.moments).tolist()

    @property
    def latency(self) -> float:
        return 0.0 if self.error else self.end - self.start


class Bench:
    """Measures each request of a run; call `observe` with each step in order."""

    def __init__(
        self, requests: Mapping[str, Request], duration: Callable[[SomeStep], float]
    ) -> None:
        """`requests`: all requests of the run by id. `duration`: the time that a step takes."""
        self._requests = requests
        self._duration = duration
        self._arrivals = Arrivals(requests.values())
        self._sent: dict[str, _Sent] = {}

    def observe(self, step: SomeStep) -> None:
        """Add the next step."""
        end = step.time + self._duration(step)
        for request_id, moment in self._arrivals.due(step.index, step.time):
            request = self._requests[request_id]
            if request.abort_at is None or request.abort_at >= step.index:  # else it is never sent
                self._sent[request_id] = _Sent(request.prompt_len, moment)
        for request_id, tokens in step.outputs.items():
            if tokens:
                self._sent[request_id].moments.append(end)
                self._sent[request_id].tokens += len(tokens)
        for request_id in step.finished:
            self._sent[request_id].end, self._sent[request_id].error = end, ""
            self._arrivals.finish(request_id, end)
        for request_id in self._sent.keys() & step.aborted:
            self._sent[request_id].error = "aborted"

    def write(self, path: Path, summary: Summary, model: str, rate: float | None) -> None:
        """Write the result of the run.

        `model`: what was served, the policy. `rate`: requests per unit, None as the file has them.

        Raises:
            OSError: the file cannot be written.
        """
        setting = {
            "date": datetime.now().strftime("%Y%m%d-%H%M%S"),
            "endpoint_type": "lockstep",
            "backend": "lockstep",
            "label": None,
            "model_id": model,
            "tokenizer_id": None,
            "num_prompts": len(self._requests),
            "request_rate": "inf" if rate is None else rate,
            "burstiness": 1.0,
            "max_concurrency": None,
        }
        with new_file(path) as file:
            json.dump(setting | self.result(summary), file)
            file.write("\n")

    def result(self, summary: Summary) -> dict[str, Any]:
        """The measured values."""
        sent = list(self._sent.values())
        done = [request for request in sent if not request.error]
        seconds = summary.duration_units
        tokens_in = sum(request.prompt_len for request in done)
        tokens_out = sum(request.tokens for request in done)
        peak_tokens, peak_requests = _peaks(done)
        return {
            "duration": seconds,
            "completed": len(done),
            "failed": len(sent) - len(done),
            "total_input_tokens": tokens_in,
            "total_output_tokens": tokens_out,
            "request_throughput": _rate(len(done), seconds),
            "request_goodput": summary.goodput_per_unit if summary.slo else None,
            "output_throughput": _rate(tokens_out, seconds),
            "total_token_throughput": _rate(tokens_in + tokens_out, seconds),
            "input_lens": [request.prompt_len for request in sent],
            "output_lens": [0 if request.error else request.tokens for request in sent],
            "ttfts": [request.ttft for request in sent],
            "itls": [request.itls for request in sent],
            "latencies": [request.latency for request in sent],
            "start_times": [request.start for request in sent],
            "queue_times": [0.0 for _ in sent],
            "generated_texts": ["" for _ in sent],
            "errors": [request.error for request in sent],
            "max_output_tokens_per_s": peak_tokens,
            "max_concurrent_requests": peak_requests,
            "rtfx": 0.0,
            **dict(_statistics("ttft", [request.ttft for request in done])),
            **dict(_statistics("tpot", [*_tpots(done)])),
            **dict(_statistics("itl", [itl for request in done for itl in request.itls])),
            **dict(_statistics("e2el", [request.latency for request in done])),
        }


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds else 0.0


def _tpots(done: Sequence[_Sent]) -> Iterator[float]:
    """Of each request with two tokens or more, the mean time for each token after the first."""
    for request in done:
        if request.tokens > 1:
            yield (request.latency - request.ttft) / (request.tokens - 1)


def _statistics(name: str, values: Sequence[float]) -> Iterator[tuple[str, float]]:
    """Mean, median, deviation and 99th percentile, in milliseconds; 0 without values."""
    given = np.asarray(values or [0.0]) * _MS
    yield f"mean_{name}_ms", float(given.mean())
    yield f"median_{name}_ms", float(np.median(given))
    yield f"std_{name}_ms", float(given.std())
    yield f"p99_{name}_ms", float(np.percentile(given, 99))


def _peaks(done: Sequence[_Sent]) -> tuple[float, int]:
    """The most times at which tokens came within a second, and the most requests at one time."""
    if not done:
        return 0.0, 0
    first = min(request.start for request in done)
    moments = [moment - first for request in done for moment in request.moments]
    starts = sorted(request.start for request in done)
    ends = sorted(request.end for request in done)
    # Before each start, the requests that have ended by then.
    present = [
        count - int(np.searchsorted(ends, start, side="right"))
        for count, start in enumerate(starts, start=1)
    ]
    _, tokens = np.unique(np.asarray(moments or [0.0]).astype(int), return_counts=True)
    return float(tokens.max()), max(present)
