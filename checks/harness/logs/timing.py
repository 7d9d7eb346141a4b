"""The work of each step of a log, with the seconds that it took; and costs fitted to them.

A log says how many tokens of a request a step computed, not behind how many others. That follows
when the request samples: then all of its tokens are computed, so the chunks before it lie end to
end. Steps whose chunks never get that far are left out.

`seconds` of a step count from its decision to its outputs. With asynchronous scheduling steps
overlap, and a step takes from the end of the one before, which logs have to a millisecond.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import define, field, frozen

from checks.harness.logs.reading import Abort, Arrival, Entry, LogError, Logged
from engine.core.clock import attended
from spec.core.errors import InputError

LEAST_STEPS = 20


@define
class Timed:
    """A step: its line in the log, its seconds, and its work as `engine.core.clock.Work` counts it.

    `unplaced`: chunks behind an unknown number of tokens.
    """

    line: int
    seconds: float | None
    chunk_tokens: int = 0
    rows: int = 0
    attended_tokens: int = 0
    unplaced: int = 0


@define
class _Request:
    """A request that has not left; `chunks`: those of a prefill under way, with their steps."""

    tokens: int
    decodes: bool = False
    chunks: list[tuple[Timed, int]] = field(factory=list)

    def compute(self, step: Timed, tokens: int) -> None:
        if self.decodes:
            step.rows += 1
            step.attended_tokens += attended(self.tokens - 1, tokens)
        else:
            step.chunk_tokens += tokens
            step.unplaced += 1
            self.chunks.append((step, tokens))

    def sample(self, tokens: int) -> None:
        computed = max(self.tokens - sum(new for _, new in self.chunks), 0)
        for step, new in self.chunks:
            step.attended_tokens += attended(computed, new)
            step.unplaced -= 1
            computed += new
        self.chunks, self.decodes = [], True
        self.tokens += tokens

    def preempt(self) -> None:
        self.chunks, self.decodes = [], False


def timed_steps(entries: Iterable[Entry], *, asynchronous: bool = False) -> tuple[list[Timed], int]:
    """The steps of a log whose work and seconds are known, and the number of the others.

    `asynchronous`: a step is decided while the one before it runs, see `Header`. Steps that
    computed nothing are in neither.

    Raises:
        LogError: a line is none, or a step names a request that never arrived.
    """
    requests: dict[str, _Request] = {}
    steps: list[Timed] = []
    ended: float | None = None
    for entry in entries:
        match entry:
            case Arrival():
                requests[entry.request.id] = _Request(entry.request.prompt_len)
            case Abort():
                requests.pop(entry.id, None)
            case Logged():
                seconds, at = entry.around.seconds, entry.around.at
                if asynchronous and seconds is not None and at is not None and ended is not None:
                    seconds = min(seconds, at - ended)
                ended = at
                step = _step(entry, seconds, requests)
                if step.rows or step.chunk_tokens:
                    steps.append(step)
    known = [step for step in steps if not step.unplaced and step.seconds and step.seconds > 0]
    return known, len(steps) - len(known)


def _step(entry: Logged, seconds: float | None, requests: dict[str, _Request]) -> Timed:
    record = entry.record
    step = Timed(entry.line, seconds)
    for name in record.get("preempted", ()):
        if name in requests:
            requests[name].preempt()
    for name, tokens in record["scheduled"].items():
        if name not in requests:
            error = LogError("step.scheduled", name, "requests that have arrived")
            raise error.at("the log", entry.line)
        requests[name].compute(step, tokens)
    for name, outputs in record["outputs"].items():
        if name in requests and outputs:
            requests[name].sample(len(outputs))
    for name in (*record.get("finished", ()), *entry.around.abort_running):
        requests.pop(name, None)
    return step


# --- costs ----------------------------------------------------------------------------------------


@frozen(kw_only=True)
class Fit:
    """Costs in seconds, fitted by least squares, and how far they are from the steps.

    `cost`: the table `[cost]`. `left_out`: why a cost was not fitted, by name. `r_squared`: the
    share of the variance that the costs explain. `median_error`, `largest_error`: of the steps,
    relative to what each took; `largest_line`: the line of the latter.
    """

    cost: Mapping[str, float]
    left_out: Mapping[str, str]
    steps: int
    r_squared: float
    median_error: float
    largest_error: float
    largest_line: int


_BASE = "base"
_NOTHING = 1e-9  # of a step
_NEGATIVE = "it would be negative"
_NOT_TOLD_APART = "the log does not tell it apart from the others"


def fitted(steps: Sequence[Timed]) -> Fit:
    """The costs of a base, a prompt token, a row and an attended token, none of them negative.

    A cost that the steps do not tell apart from those before it in this order is 0.

    Raises:
        InputError: there are fewer than `LEAST_STEPS`.
    """
    if len(steps) < LEAST_STEPS:
        allowed = f"{LEAST_STEPS} or more whose work and seconds are known"
        raise InputError("steps", len(steps), allowed)
    columns = {
        _BASE: np.ones(len(steps)),
        "per_chunk_token": np.array([step.chunk_tokens for step in steps], float),
        "per_row": np.array([step.rows for step in steps], float),
        "per_attended_token": np.array([step.attended_tokens for step in steps], float),
    }
    seconds = np.array([step.seconds for step in steps], float)
    costs, left_out = non_negative_costs(columns, seconds)
    expected = sum(cost * columns[name] for name, cost in costs.items())
    errors = np.abs(expected - seconds) / seconds
    spread = ((seconds - seconds.mean()) ** 2).sum()
    base = costs.pop(_BASE, 0.0)
    return Fit(
        cost={"prefill_time": base, "decode_time": base, **costs},
        left_out=left_out,
        steps=len(steps),
        r_squared=1.0 - float(((expected - seconds) ** 2).sum() / spread) if spread else 1.0,
        median_error=float(np.median(errors)),
        largest_error=float(errors.max()),
        largest_line=steps[int(errors.argmax())].line,
    )


def non_negative_costs(
    columns: Mapping[str, Any], seconds: Any
) -> tuple[dict[str, float], dict[str, str]]:
    """The costs by name, by least squares, and why others were left out.

    A cost that the columns do not tell apart from those before it is left out; so is one that would
    be negative.
    """
    left_out: dict[str, str] = {}
    chosen: list[str] = []
    for name in columns:
        if _rank(columns, [*chosen, name]) > len(chosen):
            chosen.append(name)
        else:
            left_out[name] = _NOT_TOLD_APART
    costs = _least_squares(columns, chosen, seconds)
    while min(costs.values()) < 0:
        worst = min(costs, key=lambda name: costs[name] * columns[name].mean())
        left_out[worst] = _NEGATIVE
        chosen.remove(worst)
        costs = _least_squares(columns, chosen, seconds)
    return costs, left_out


def _rank(columns: Mapping[str, Any], names: Sequence[str]) -> int:
    return int(np.linalg.matrix_rank(_matrix(columns, names)))


def _matrix(columns: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The columns side by side, each scaled to a maximum of 1."""
    return np.column_stack([columns[name] / max(columns[name].max(), 1.0) for name in names])


def _least_squares(
    columns: Mapping[str, Any], names: Sequence[str], seconds: Any
) -> dict[str, float]:
    scaled, *_ = np.linalg.lstsq(_matrix(columns, names), seconds, rcond=None)
    scaled[np.abs(scaled) < _NOTHING * seconds.mean()] = 0.0  # an error of rounding
    return {
        name: float(cost / max(columns[name].max(), 1.0))
        for name, cost in zip(names, scaled, strict=True)
    }
