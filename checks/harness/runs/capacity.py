"""Capacity: the largest rate, or the values of a key, with which requests meet their bounds.

A value is kept if the share of requests that meet every bound is as large as asked for. The search
goes out from a value that is kept, in doublings, and then halves the interval to the first that is
not; so it finds the nearest boundary on each side, also where values further out are kept again.
Each order of the arrivals is searched on its own: as the file has it, and shuffled by seeds.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain, zip_longest
from math import sqrt
from statistics import mean, stdev
from typing import Any

from attrs import evolve, field, fields, frozen

from checks.cores import on_all_cores
from checks.ending import raise_if_signalled
from checks.export.limits import refuse_large_sizes
from checks.harness.runs.settings import Settings
from checks.harness.runs.simulating import simulate
from checks.registry import claims_of
from engine.core.metrics import Objective
from engine.workloads import Workload, at_rate, with_shuffled_gaps
from spec.core.configuration import PolicyConfig
from spec.core.errors import InputError
from spec.core.requests import Request

MAX_RATE = "max_rate"
_STEP = 1.01  # between two rates that are tried
_DOUBLING = 70  # such steps
_FASTEST, _SLOWEST = 10 * _DOUBLING, 12 * _DOUBLING  # from the rate at which requests were served
_MOST_VALUE = 2**20  # of a key
_CURVE = 9  # values that a curve has


@frozen
class Question:
    """What is asked: a key, or `MAX_RATE`, and the share of requests that must meet the bounds.

    `workload`: requests that the configuration can serve, with moments of arrival.
    """

    settings: Settings
    workload: Workload
    objective: Objective
    share: float
    key: str = MAX_RATE

    def __attrs_post_init__(self) -> None:
        keys = integer_keys(self.settings.config)
        if self.key not in (MAX_RATE, *keys):
            raise InputError("--find", self.key, ", ".join((MAX_RATE, *keys)))

    @property
    def is_rate(self) -> bool:
        """True if a rate is searched."""
        return self.key == MAX_RATE


def integer_keys(config: PolicyConfig) -> list[str]:
    """The keys of a configuration whose values are whole numbers."""
    return [key.name for key in fields(type(config)) if key.type in (int, int | None)]


@frozen
class Arrivals:
    """An order of the gaps between arrivals; `seed`: None for that of the file.

    `shares`: the share that was measured, by value. `refused`: values of a key with which the
    configuration is refused.
    """

    question: Question
    seed: int | None = None
    shares: dict[float, float] = field(factory=dict, init=False, eq=False)
    refused: set[float] = field(factory=set, init=False, eq=False)

    @cached_property
    def workload(self) -> Workload:
        """The workload with its gaps in this order."""
        workload = self.question.workload
        return workload if self.seed is None else with_shuffled_gaps(workload, self.seed)

    def share(self, value: float) -> float:
        """The share of requests that meet every bound; of those whose clients do not leave.

        Requests that the value of a key makes unservable meet none, and 0 requests do with a value
        that the configuration refuses.
        """
        if value not in self.shares and value not in self.refused:
            settings = self._settings(value)
            if settings is None:
                self.refused.add(value)
            else:
                self.shares[value] = self._measured(value, settings)
        return self.shares.get(value, 0.0)

    def _settings(self, value: float) -> Settings | None:
        """The settings with this value of the key; None if they are refused."""
        question, settings = self.question, self.question.settings
        if question.is_rate:
            return settings
        changed: dict[str, Any] = {question.key: int(value)}
        try:
            config = evolve(settings.config, **changed)
            refuse_large_sizes(config)
        except InputError:
            return None
        return evolve(settings, config=config)

    def _measured(self, value: float, settings: Settings) -> float:
        workload = self.workload
        if self.question.is_rate:
            workload = at_rate(workload, value)
        served = [*_servable(workload.requests, settings.config)]
        if not served:
            return 0.0
        summary = simulate(settings, served, objective=self.question.objective).summary
        raise_if_signalled()
        return summary.good / max(len(workload.requests) - summary.aborted, 1)

    def keeps(self, value: float) -> bool:
        """True if the share with this value is as large as asked for."""
        return self.share(value) >= self.question.share


def _servable(requests: Iterable[Request], config: PolicyConfig) -> Iterator[Request]:
    """The requests that the configuration can serve, and that follow none that it cannot."""
    refuse, lost = claims_of(config.policy).refuse_unservable, set[str]()
    for request in requests:
        try:
            refuse(request, config)
        except InputError:
            lost.add(request.id)
        if request.after in lost:
            lost.add(request.id)
        if request.id not in lost:
            yield request


# --- search ---------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Kept:
    """The values that are kept with one order of arrivals, from `least` to `most`.

    None: no value is kept. Of a rate `least` is None. `open_ends`: those of the two beyond which
    values are refused or were not tried. `shares`: the share that was measured, by value.
    """

    seed: int | None
    least: int | None = None
    most: float | None = None
    open_ends: Sequence[str] = ()
    shares: Mapping[float, float]


def searched(arrivals: Arrivals, start: float) -> Kept:
    """The rates or values that are kept; the search begins at `start`."""
    search = _rates if arrivals.question.is_rate else _values
    return Kept(seed=arrivals.seed, shares=arrivals.shares, **search(arrivals, start))


def _rates(arrivals: Arrivals, start: float) -> dict[str, Any]:
    def keeps(steps: int) -> bool:
        return arrivals.keeps(start * _STEP**steps)

    near = _first(keeps, range(0, -_SLOWEST - 1, -_DOUBLING))
    if near is None:
        return {}
    last = _last(keeps, near, range(near + _DOUBLING, _FASTEST + 1, _DOUBLING))
    fastest = start * _STEP ** (_FASTEST if last is None else last)
    return {"most": fastest, "open_ends": ["most"] if last is None else []}


def _values(arrivals: Arrivals, start: float) -> dict[str, Any]:
    key, config = arrivals.question.key, arrivals.question.settings.config
    bottom = config.LEAST.get(key, 1)
    top = min(config.MOST.get(key, _MOST_VALUE), _MOST_VALUE)
    first = int(start)
    pairs = zip_longest(_doubled(first, top), _halved(first, bottom))
    outward = (value for pair in pairs for value in pair if value is not None)
    near = _first(arrivals.keeps, chain([first], outward))
    if near is None:
        return {}
    least = _last(arrivals.keeps, near, _halved(near, bottom))
    most = _last(arrivals.keeps, near, _doubled(near, top))
    ends = {
        "least": bottom if least is None else least,
        "most": top if most is None else most,
    }
    beyond = {"least": ends["least"] - 1, "most": ends["most"] + 1}
    tried = arrivals.shares
    return ends | {"open_ends": [name for name, value in beyond.items() if value not in tried]}


def _first(keeps: Callable[[int], bool], values: Iterable[int]) -> int | None:
    """The first value that is kept; None if none is."""
    return next((value for value in values if keeps(value)), None)


def _last(keeps: Callable[[int], bool], kept: int, values: Iterable[int]) -> int | None:
    """The last value that is kept on the way from `kept` over the values; None if all are."""
    for value in values:
        if not keeps(value):
            return _between(keeps, kept, value)
        kept = value
    return None


def _between(keeps: Callable[[int], bool], kept: int, other: int) -> int:
    """The last value that is kept before `other`, which is not; by halving."""
    while abs(other - kept) > 1:
        middle = (kept + other) // 2
        kept, other = (middle, other) if keeps(middle) else (kept, middle)
    return kept


def _doubled(value: int, most: int) -> Iterator[int]:
    while value < most:
        value = min(max(2 * value, 1), most)
        yield value


def _halved(value: int, least: int) -> Iterator[int]:
    while value > least:
        value = max(value // 2, least)
        yield value


# --- the answer -----------------------------------------------------------------------------------


@frozen
class Estimate:
    """The mean of a boundary over shuffled arrivals, and its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """The estimate of two values or more, by Student's distribution."""
        middle = mean(values)
        half = T_95[len(values) - 2] * stdev(values) / sqrt(len(values))
        return cls(middle, middle - half, middle + half)


T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093),
)
"""The 97.5th percentile of Student's t distribution, by degrees of freedom from 1."""


@frozen
class Capacity:
    """The answer to a question: what is kept with each order of arrivals, that of the file first.

    `curve`: by value, the share with each order, where it was asked for.
    """

    question: Question
    kept: Sequence[Kept]
    curve: Mapping[float, Sequence[float]] = field(factory=dict)

    @property
    def simulations(self) -> int:
        """The number of simulations of the search."""
        return sum(len(kept.shares) for kept in self.kept)

    def estimate(self, name: str) -> Estimate | None:
        """The estimate of `least` or `most`; None if it was not found for every shuffle."""
        shuffled = [kept for kept in self.kept if kept.seed is not None]
        values = [getattr(kept, name) for kept in shuffled if name not in kept.open_ends]
        is_found = len(values) == len(shuffled) and None not in values
        return Estimate.of(values) if is_found and len(values) > 1 else None


def capacity(question: Question, seeds: Iterable[int], *, curve: bool) -> Iterator[Capacity]:
    """The answer so far, after each order of arrivals and, with `curve`, at the end once more.

    The orders are searched on all cores.

    Raises:
        WorkloadError: a request arrives with a step instead of at a moment.
    """
    with_shuffled_gaps(question.workload, 0)  # raises before any work
    orders = [Arrivals(question), *(Arrivals(question, seed) for seed in seeds)]
    start = _start(question)
    found: list[Kept] = []
    for kept in on_all_cores(partial(searched, start=start), orders):
        found.append(kept)
        yield Capacity(question, tuple(found))
    if curve:
        values = _curve_values(question, found, start)
        shares = [*on_all_cores(partial(_shares_at, values=values), orders)]
        by_value = {value: [row[value] for row in shares] for value in values}
        yield Capacity(question, tuple(found), by_value)


def _start(question: Question) -> float:
    """The value of the key, or the rate at which all requests are served that arrive at once."""
    config = question.settings.config
    if not question.is_rate:
        value = getattr(config, question.key)
        return float(config.derived()[question.key] if value is None else value)
    crowded = at_rate(question.workload, 1e9)
    summary = simulate(question.settings, crowded.requests).summary
    return max(summary.finished, 1) / max(summary.duration_units, 1e-9)


def _curve_values(question: Question, found: Sequence[Kept], start: float) -> list[float]:
    """Values around what is kept with the arrivals of the file, evenly spaced by their ratio."""
    first = found[0]
    most = start if first.most is None else first.most
    low = most / 4 if first.least is None else max(first.least / 2, 1)
    ratio = (2 * most / low) ** (1 / (_CURVE - 1))
    values = [low * ratio**place for place in range(_CURVE)]
    if not question.is_rate:
        values = [round(value) for value in values]
    return sorted({*values, *(end for end in (first.least, first.most) if end is not None)})


def _shares_at(arrivals: Arrivals, values: Sequence[float]) -> dict[float, float]:
    return {value: arrivals.share(value) for value in values}
