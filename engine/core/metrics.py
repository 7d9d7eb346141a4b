"""Metrics of a run: latencies, throughput, padding, cache hits and waits.

Each step is observed once and not kept: memory grows with the number of requests, by some bytes
for each, and not with the length of the run.

A step that begins at time t ends at t + the duration of its work (`engine.core.clock`), and its
tokens are available at its end. A request arrives at its `arrival_time`, if it has one, else when
step `arrival` begins.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from math import fsum, inf
from typing import Any, Generic, TypeVar

import numpy as np
from attrs import asdict, define, frozen
from ddsketch.ddsketch import BaseDDSketch
from ddsketch.mapping import LogarithmicMapping
from ddsketch.store import DenseStore

from engine.core.arrivals import Arrivals
from engine.core.clock import CostModel, Prefill, Work
from engine.core.decisions import Decisions, decisions_of
from engine.core.tensors import NO_TOKENS, Tensor
from spec.core.arithmetic import cdiv
from spec.core.errors import ConfigError
from spec.core.records import DECODE, IDLE, PREFILL, SomeStep
from spec.core.requests import Request

StepT = TypeVar("StepT", bound=SomeStep)

_LATENCIES = ("ttft", "itl", "end_to_end")
_PERCENTS = (50, 90, 99)
MOST_VALUES = 10_000  # distinct values that a distribution counts exactly
RELATIVE_ERROR = 0.001  # of percentiles with more distinct values
_DECIMALS = 9  # of rounded differences of clock readings, so that equal waits compare equal


@frozen(kw_only=True)
class Objective:
    """Latency bounds that a request must meet to count for goodput, in units of simulated time.

    - `ttft`: time to first token.
    - `itl`: mean time between tokens, also called time per output token. A request with one token
      meets any bound.
    - `e2e`: end-to-end latency.

    The default of each is no bound.

    Raises:
        ConfigError: a bound is not above 0.
    """

    ttft: float = inf
    itl: float = inf
    e2e: float = inf

    def __attrs_post_init__(self) -> None:
        for name, bound in asdict(self).items():
            if not bound > 0:  # `not` also catches NaN
                raise ConfigError(f"slo {name}", bound, "time units above 0")

    def given(self) -> dict[str, float]:
        """The finite bounds by name."""
        return {name: bound for name, bound in asdict(self).items() if bound < inf}


@frozen
class Spread:
    """Count, mean, percentiles and maximum of measured values; None if there are no values.

    Percentiles are by nearest rank: the p-th percentile of n sorted values is the value at rank
    ceil(p / 100 x n). If `exact` is false, percentiles have a relative error of up to 0.001; count,
    mean and maximum are always exact.
    """

    count: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    max: float | None = None
    exact: bool = True


class _Sketch(BaseDDSketch):
    """A quantile sketch whose bins can be listed."""

    def __init__(self) -> None:
        self._middles, self._bins = LogarithmicMapping(RELATIVE_ERROR), DenseStore()
        super().__init__(self._middles, self._bins, DenseStore(), 0.0)

    def counts(self) -> dict[float, int]:
        """Number of values in each bin, by the value in the middle of the bin."""
        above_zero = {
            round(self._middles.value(place + self._bins.offset), _DECIMALS): int(times)
            for place, times in enumerate(self._bins.bins)
            if times
        }
        zeros = int(self.count) - sum(above_zero.values())
        return {0.0: zeros, **above_zero} if zeros else above_zero


class Distribution:
    """Histogram of values that are 0 or more.

    Up to `most_values` distinct values are counted exactly. Beyond that a quantile sketch counts
    them in bins whose values differ by 0.2 % at most, so that memory is bounded for any run.
    """

    def __init__(self, most_values: int = MOST_VALUES) -> None:
        """An empty histogram."""
        self._counts: Counter[float] = Counter()
        self._most_values = most_values
        self._largest = 0.0
        self._sketch: _Sketch | None = None

    def add(self, value: float, times: int = 1) -> None:
        """Count `value` `times` times."""
        rounded = round(value, _DECIMALS)
        self._largest = max(self._largest, rounded)
        if self._sketch is not None:
            self._sketch.add(rounded, times)
            return
        self._counts[rounded] += times
        if len(self._counts) > self._most_values:
            self._sketch = _Sketch()
            for counted, frequency in self._counts.items():
                self._sketch.add(counted, frequency)
            self._counts.clear()

    def counts(self) -> dict[float, int]:
        """Frequency of each value in ascending order; of a sketch, by the middles of its bins."""
        if self._sketch is None:
            return dict(sorted(self._counts.items()))
        return self._sketch.counts()

    def spread(self) -> Spread:
        """Count, mean, percentiles and maximum of the values."""
        if self._sketch is not None:
            return self._estimated(self._sketch)
        count = self._counts.total()
        if count == 0:
            return Spread(0)
        total = fsum(value * times for value, times in self._counts.items())
        values = sorted(self._counts)
        through = list(accumulate(self._counts[value] for value in values))
        ranks = (cdiv(percent * count, 100) for percent in _PERCENTS)
        p50, p90, p99 = (values[bisect_left(through, rank)] for rank in ranks)
        return Spread(count, total / count, p50, p90, p99, values[-1])

    def _estimated(self, sketch: "_Sketch") -> Spread:
        """The spread of a sketch, whose ranks begin at 0."""
        count = int(sketch.count)
        places = (cdiv(percent * count, 100) - 1 for percent in _PERCENTS)
        values = (sketch.get_quantile_value(place / (count - 1)) or 0.0 for place in places)
        p50, p90, p99 = (min(value, self._largest) for value in values)
        return Spread(count, sketch.sum / count, p50, p90, p99, self._largest, exact=False)


@frozen(kw_only=True)
class Summary:
    """The metrics of a run. Times are in units of the simulated clock, lengths in tokens.

    Requests and tokens:

    - `unfinished`: requests that neither finished nor were aborted, arrived or not.
    - `steps`: number of steps by kind.
    - `prompt_tokens`: prompt lengths of all admitted requests. `output_tokens`: all sampled tokens.

    Latencies, in steps and in time units:

    - `ttft_*`: from arrival to the end of the step that yields the first token, for each request
      with a token. In steps, the first and the last step count.
    - `itl_*`: from a token of a request to its next token.
    - `end_to_end_*`: from arrival to the end of the last step, for finished requests.
    - `ttft_by_prompt`: TTFT in time units for each quartile of the requests by prompt length, keyed
      by the longest prompt of the quartile.

    Throughput and goodput:

    - `duration_units`: from the beginning of the first step to the end of the last step that is not
      idle. `output_tokens_per_unit`: sampled tokens over this duration.
    - `slo`: the latency bounds. `good`: finished requests that meet all of them.
    - `goodput_per_unit`: `good` over the duration. `goodput_share`: `good` over `finished`.

    Padding:

    - `decode_volume`: sum of batch size x largest tkv over all decode steps.
    - `decode_padding_tokens`: the part of `decode_volume` that belongs to no request: left padding,
      and the distance from each row's tkv to the largest. `decode_padding_share`: their ratio.
    - `prefill_padding_tokens`: padding in the chunks of prefill steps.

    Prefix cache:

    - `prefill_tokens`: lengths of all prefills, including those after a preemption.
    - `reused_tokens`: cached tokens of these that were skipped. `prefix_hit_rate`: their ratio.
    - `recomputed_tokens`: cached tokens that were computed all the same, because their chunk was
      not cached as a whole.

    Scheduling:

    - `preemptions`: requests that lost their progress, or whose blocks were swapped out.
    - `waits`: steps in which a request was refused a prefill, by the first rule that refused one.
    - `peak_volume`: largest volume of a step. `volume_limit`: its limit, None if there is none.
    - `peak_batch`: largest number of decoding rows in a step.
    - `peak_scheduled_tokens`, `peak_scheduled_requests`: largest of a step, prefills and decodes
      together.
    - `transfers`: number of swapped or copied blocks by kind; empty if the policy moves no blocks.
    """

    requests: int
    finished: int
    aborted: int
    unfinished: int
    steps: dict[str, int]
    prompt_tokens: int
    output_tokens: int
    ttft_steps: Spread
    ttft_units: Spread
    itl_steps: Spread
    itl_units: Spread
    end_to_end_steps: Spread
    end_to_end_units: Spread
    ttft_by_prompt: dict[int, Spread]
    duration_units: float
    output_tokens_per_unit: float | None
    slo: dict[str, float]
    good: int
    goodput_per_unit: float | None
    goodput_share: float | None
    decode_volume: int
    decode_padding_tokens: int
    decode_padding_share: float | None
    prefill_padding_tokens: int
    prefill_tokens: int
    reused_tokens: int
    recomputed_tokens: int
    prefix_hit_rate: float | None
    preemptions: int
    pauses: int
    tkv_jumps: int
    waits: dict[str, int]
    peak_volume: int
    volume_limit: int | None
    peak_batch: int
    peak_scheduled_tokens: int
    peak_scheduled_requests: int
    transfers: dict[str, int]

    def as_mapping(self) -> dict[str, Any]:
        """The summary as JSON values; ratios and means without a value are None."""
        by_prompt = self.ttft_by_prompt.items()
        quartiles = [{"longest": longest, **asdict(spread)} for longest, spread in by_prompt]
        return asdict(self) | {"ttft_by_prompt": quartiles}


@define
class _Progress:
    """A request that has arrived and not left; `number`: its place among all requests."""

    id: str
    number: int
    arrival_step: int
    arrival_time: float
    is_admitted: bool = False


class _TokenTimes:
    """Step and time of the newest token of each request, in arrays over all requests.

    `counts` [requests]: tokens so far. `first_times`, `times` and `steps` [requests]: time of the
    first token, and time and step of the newest.
    """

    def __init__(self, requests: int) -> None:
        self.counts = np.zeros(requests, np.int64)
        self.first_times = np.zeros(requests)
        self.times = np.zeros(requests)
        self.steps = np.zeros(requests, np.int64)
        # Requests that got a token each in every one of the last steps, which are not written yet.
        self._steady: Sequence[str] | None = None
        self._places: Tensor = NO_TOKENS
        self._unwritten = 0
        self._last = 0, 0.0

    def repeat(self, sampled: Sequence[str], now: tuple[int, float]) -> tuple[int, float] | None:
        """Count one more token of each of the same requests as in the last step.

        Returns step and time of that step; None if they are others.
        """
        if sampled != self._steady:
            return None
        last, self._last = self._last, now
        self._unwritten += 1
        return last

    def add(
        self, sampled: Sequence[str], places: Tensor, now: tuple[int, float]
    ) -> tuple[Tensor, list[tuple[int, float, int]]]:
        """Count a token for each of these `places`; those of a request are adjacent.

        Returns the places of the requests whose first token it is, and for the others step and time
        of their newest token with the number of requests.
        """
        self.write()
        rows, more = places, np.ones(1, np.int64)
        if (places[1:] == places[:-1]).any():
            rows, more = np.unique(places, return_counts=True)
        elif isinstance(sampled, tuple):
            self._steady, self._places, self._last = sampled, rows, now
        counts = self.counts[rows]
        new = rows[counts == 0]
        old = rows[counts > 0] if len(new) else rows
        groups: list[tuple[int, float, int]] = []
        if len(old):
            steps, firsts, times = self.steps[old], [0], [len(old)]
            if steps.min() < steps.max():
                _, places, counted = np.unique(steps, return_index=True, return_counts=True)
                firsts, times = places.tolist(), counted.tolist()
            for first, count in zip(firsts, times, strict=True):
                groups.append((int(steps[first]), float(self.times[old[first]]), count))
        self.counts[rows] = counts + more
        self.first_times[new] = now[1]
        self.steps[rows], self.times[rows] = now
        return new, groups

    def write(self) -> None:
        """Write the repeated tokens to the arrays."""
        if self._unwritten:
            self.counts[self._places] += self._unwritten
            self.steps[self._places], self.times[self._places] = self._last
            self._unwritten = 0
        self._steady = None

    def meets(self, progress: _Progress, objective: Objective, end: float) -> bool:
        """True if the request, which finishes at `end`, meets every bound."""
        place = progress.number
        first, newest = float(self.first_times[place]), float(self.times[place])
        latencies = {
            "ttft": first - progress.arrival_time,
            "itl": (newest - first) / max(int(self.counts[place]) - 1, 1),
            "e2e": end - progress.arrival_time,
        }
        bounds = objective.given().items()
        return all(round(latencies[name], _DECIMALS) <= bound for name, bound in bounds)


class Metrics(Generic[StepT]):
    """Metrics of one run: call `observe` with each step in order, `summary` at any time."""

    def __init__(
        self,
        requests: Mapping[str, Request],
        cost: CostModel,
        work: Callable[[StepT], Work],
        *,
        objective: Objective | None = None,
        volume_limit: int | None = None,
    ) -> None:
        """`requests`: all requests of the run by id. `work`: returns the work of a step."""
        self._requests = requests
        self._arrivals = Arrivals(requests.values())
        self._numbers = {name: number for number, name in enumerate(requests)}
        self._present: dict[int, _Progress] = {}
        self._tokens = _TokenTimes(len(requests))
        self._cost = cost
        self._work = work
        self._objective = objective or Objective()
        self._volume_limit = volume_limit
        self._counts: Counter[str] = Counter()
        self._steps: Counter[str] = Counter({PREFILL: 0, DECODE: 0, IDLE: 0})
        self._waits: Counter[str] = Counter()
        self._transitions: Counter[str] = Counter()
        self._transfers: Counter[str] = Counter()
        self._measured: defaultdict[str, Distribution] = defaultdict(Distribution)
        longest = _longest_of_quartiles([request.prompt_len for request in requests.values()])
        self._by_prompt = {length: Distribution() for length in longest}
        self._peaks: Counter[str] = Counter()
        self._began: float | None = None
        self._ended = 0.0

    def observe(self, step: StepT) -> None:
        """Add the next step, a record, to the metrics."""
        self.add(decisions_of(step, self._work(step)))

    def add(self, step: Decisions) -> None:
        """Add the decisions of the next step to the metrics."""
        end = step.time + step.work.duration(self._cost)
        for request_id, time in self._arrivals.due(step.index, step.time):
            number = self._numbers[request_id]
            self._present[number] = _Progress(request_id, number, step.index, time)
        self._observe_work(step, end)
        if step.sampled:
            self._observe_tokens(step.sampled, (step.index, end))
        for prefill in step.work.prefills:
            self._prefill(prefill)
        if step.finished or step.aborted:
            self._leave(step, end)

    def _observe_work(self, step: Decisions, end: float) -> None:
        """Count the work, transitions and peaks of the step."""
        work = step.work
        self._began = step.time if self._began is None else self._began
        self._ended = self._ended if step.kind == IDLE else end
        self._steps[step.kind] += 1
        if step.transitions:
            self._transitions.update(step.transitions)
        if work.transfers:
            self._transfers.update(work.transfers)
        if step.refusal is not None:
            self._waits[step.refusal] += 1
        self._peak("volume", work.volume)
        self._peak("batch", work.rows)
        self._peak("tokens", step.tokens)
        self._peak("requests", step.requests)
        if step.kind == DECODE:
            self._counts["decode_volume"] += work.volume
            self._counts["decode_padding_tokens"] += work.padding
        else:
            self._counts["prefill_padding_tokens"] += work.padding

    def _peak(self, name: str, value: int) -> None:
        if value > self._peaks[name]:
            self._peaks[name] = value

    def _observe_tokens(self, sampled: Sequence[str], now: tuple[int, float]) -> None:
        """Count the step's tokens, and the time since each request's previous token."""
        self._counts["output_tokens"] += len(sampled)
        last = self._tokens.repeat(sampled, now)
        if last is not None:
            self._between(now, *last, len(sampled))
            return
        places = np.array([self._numbers[name] for name in sampled], np.int64)
        first, before = self._tokens.add(sampled, places, now)
        for number in first.tolist():
            self._first_token(self._present[number], *now)
        for step, time, times in before:
            self._between(now, step, time, times)
        if at_once := len(places) - len(first) - sum(times for _, _, times in before):
            self._between(now, *now, at_once)

    def _between(self, now: tuple[int, float], step: int, time: float, times: int) -> None:
        """Count the time from a token to the next one, for `times` requests."""
        self._measured["itl_steps"].add(now[0] - step, times)
        self._measured["itl_units"].add(now[1] - time, times)

    def _first_token(self, progress: _Progress, step: int, time: float) -> None:
        self._since_arrival("ttft", progress, step, time)
        prompt_len = self._requests[progress.id].prompt_len
        longest = min(length for length in self._by_prompt if prompt_len <= length)
        self._by_prompt[longest].add(time - progress.arrival_time)

    def _since_arrival(self, name: str, progress: _Progress, step: int, time: float) -> None:
        self._measured[f"{name}_steps"].add(step - progress.arrival_step + 1)
        self._measured[f"{name}_units"].add(time - progress.arrival_time)

    def _prefill(self, began: Prefill) -> None:
        """Count a prefill that begins, and its cached tokens."""
        self._counts["prefill_tokens"] += began.tokens
        self._counts["reused_tokens"] += began.reused
        self._counts["recomputed_tokens"] += began.recomputed
        progress = self._present[self._numbers[began.id]]
        if not progress.is_admitted:
            progress.is_admitted = True
            self._counts["prompt_tokens"] += self._requests[began.id].prompt_len

    def _leave(self, step: Decisions, end: float) -> None:
        self._tokens.write()
        for request_id in step.finished:
            progress = self._present.pop(self._numbers[request_id])
            self._counts["finished"] += 1
            self._counts["good"] += self._tokens.meets(progress, self._objective, end)
            self._since_arrival("end_to_end", progress, step.index, end)
            self._arrivals.finish(request_id, end)
        for request_id in step.aborted:
            self._counts["aborted"] += 1
            # Absent if it was aborted before it arrived.
            self._present.pop(self._numbers[request_id], None)

    def latencies(self) -> dict[str, dict[float, int]]:
        """Frequency of each value of `ttft`, `itl` and `end_to_end`, in time units."""
        return {name: self._measured[f"{name}_units"].counts() for name in _LATENCIES}

    def summary(self) -> Summary:
        """The metrics of the steps so far."""
        counts, measured, peaks = self._counts, self._measured, self._peaks
        duration = 0.0 if self._began is None else max(self._ended - self._began, 0.0)
        return Summary(
            requests=len(self._requests),
            finished=counts["finished"],
            aborted=counts["aborted"],
            unfinished=len(self._requests) - counts["finished"] - counts["aborted"],
            steps=dict(self._steps),
            prompt_tokens=counts["prompt_tokens"],
            output_tokens=counts["output_tokens"],
            ttft_steps=measured["ttft_steps"].spread(),
            ttft_units=measured["ttft_units"].spread(),
            itl_steps=measured["itl_steps"].spread(),
            itl_units=measured["itl_units"].spread(),
            end_to_end_steps=measured["end_to_end_steps"].spread(),
            end_to_end_units=measured["end_to_end_units"].spread(),
            ttft_by_prompt={longest: ttft.spread() for longest, ttft in self._by_prompt.items()},
            duration_units=duration,
            output_tokens_per_unit=_ratio(counts["output_tokens"], duration),
            slo=self._objective.given(),
            good=counts["good"],
            goodput_per_unit=_ratio(counts["good"], duration),
            goodput_share=_ratio(counts["good"], counts["finished"]),
            decode_volume=counts["decode_volume"],
            decode_padding_tokens=counts["decode_padding_tokens"],
            decode_padding_share=_ratio(counts["decode_padding_tokens"], counts["decode_volume"]),
            prefill_padding_tokens=counts["prefill_padding_tokens"],
            prefill_tokens=counts["prefill_tokens"],
            reused_tokens=counts["reused_tokens"],
            recomputed_tokens=counts["recomputed_tokens"],
            prefix_hit_rate=_ratio(counts["reused_tokens"], counts["prefill_tokens"]),
            preemptions=self._transitions["preempt"] + self._transitions["swap_out"],
            pauses=self._transitions["pause"],
            tkv_jumps=self._transitions["jump_tkv"],
            waits=dict(sorted(self._waits.items())),
            peak_volume=peaks["volume"],
            volume_limit=self._volume_limit,
            peak_batch=peaks["batch"],
            peak_scheduled_tokens=peaks["tokens"],
            peak_scheduled_requests=peaks["requests"],
            transfers=dict(self._transfers),
        )


def _longest_of_quartiles(lengths: Iterable[int]) -> list[int]:
    """The longest length of each quartile in ascending order, without duplicates."""
    ordered = sorted(lengths)
    last = [int(cdiv(part * len(ordered), 4)) - 1 for part in (1, 2, 3, 4) if ordered]
    return sorted({ordered[place] for place in last})


def _ratio(part: float, whole: float) -> float | None:
    """`part` / `whole`; None if `whole` is 0."""
    return part / whole if whole else None
