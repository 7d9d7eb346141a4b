"""Measured claims: small experiments for what the texts say about time, cost and throughput."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from attrs import frozen

from checks.export.policy import presentation_of
from checks.harness.case import Case
from checks.harness.runs.serving import scheduler_of, served
from checks.registry import claims_of
from engine.core.clock import Work
from engine.core.metrics import Metrics, Summary
from spec.core.records import SomeStep
from spec.core.requests import Prompt, Request


@frozen(kw_only=True)
class Measured:
    """The result of an experiment.

    `claims`: statements of a text, in the order of their numbers, each with whether the rows say
    so too.
    """

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    claims: Mapping[str, bool]


@frozen
class Served:
    """A served workload: its steps, the work of each, and the summary of the run."""

    steps: Sequence[SomeStep]
    works: Sequence[Work]
    summary: Summary

    @property
    def computed(self) -> int:
        """Tokens of prompts that were computed, after preemptions once more."""
        return sum(work.chunk_tokens for work in self.works)


def serve(policy: str, requests: Sequence[Request], **keys: Any) -> Served:
    """Serve the requests at the default costs of the policy; `keys`: of its configuration."""
    config, shown = claims_of(policy).config(**keys), presentation_of(policy)
    work = partial(shown.work, config)
    metrics = Metrics[SomeStep]({request.id: request for request in requests}, shown.cost, work)
    using = scheduler_of(None, config)
    steps = [*served(Case(config, tuple(requests)), using, shown.cost)]
    for step in steps:
        metrics.observe(step)
    return Served(steps, [work(step) for step in steps], metrics.summary())


def asking(
    name: str, tokens: int, outputs: int, at: float = 0, *, shared: int = 0, priority: int = 0
) -> Request:
    """A request for `outputs` tokens at a moment of the clock; the first `shared` are common."""
    parts = [("system", shared), (name, tokens - shared)]
    prompt = Prompt.of_parts([part for part in parts if part[1]])
    return Request(
        id=name, prompt=prompt, max_tokens=outputs, arrival_time=float(at), priority=priority
    )


def rises(values: Sequence[float | None]) -> bool:
    """True if each value is larger than the one before."""
    return all(before < after for before, after in pairwise(map(known, values)))


def falls(values: Sequence[float | None]) -> bool:
    """True if each value is smaller than the one before."""
    return rises(values[::-1])


def known(value: float | None) -> float:
    """The value, which a run with tokens has."""
    assert value is not None
    return value


def shown(value: float | None) -> str:
    """The value for a table: three digits after the point below 10, one above."""
    return f"{known(value):,.3f}" if known(value) < 10 else f"{known(value):,.1f}"
