"""Simulations: a scheduler serves a workload without a device, and no rule judges its steps."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from random import Random
from time import perf_counter
from typing import Any

from attrs import evolve, frozen

from checks.ending import stopping
from checks.export.policy import presentation_of
from checks.harness.case import Case
from checks.harness.clients import Workload
from checks.harness.policy import evidence_of
from checks.harness.runs.endless import EndlessError, Loops
from checks.harness.runs.serving import (
    Run,
    metrics_of,
    observed,
    rare_collection,
    run_workload,
    scheduler_of,
    unmet_goals,
)
from checks.harness.runs.settings import Settings
from checks.harness.system import Scheduler, numbered, take_step
from checks.words import counted
from engine.core.clock import CostModel
from engine.core.decisions import Decisions
from engine.core.metrics import Objective
from spec.core.errors import InputError
from spec.core.records import SomeStep
from spec.core.requests import Request

SIMULATION = "simulation"  # what schedules: the engine, or the reference, alone


def simulated_steps(
    case: Case, cost: CostModel, record: Callable[[SomeStep], None] | None = None
) -> Iterator[Decisions]:
    """The decisions of each step until all requests have arrived and left.

    The engine takes them, where the policy has one, else the reference. `record`: called with the
    record of each step, whose tokens are none of the model's.

    Raises:
        WorkloadError: a request can never be served.
        GuardError: the reference stops.
        EndlessError: the steps repeat for ever.
    """
    evidence, config = evidence_of(case.config.policy), case.config
    decisions = partial(presentation_of(config.policy).decisions, config)
    engine = evidence.engine
    scheduler: Scheduler[Any]
    if engine is None or engine.simulated is None:
        scheduler = evidence.reference(case)
    else:
        scheduler = engine.simulated(case, record is not None)
    workload = Workload(case.requests)
    loops = Loops()
    for index, action in numbered(workload):
        step = take_step(scheduler, index, action)
        if record is not None:
            record(step)
        decided = step if isinstance(step, Decisions) else decisions(step)
        took = decided.work.duration(cost)
        workload.advance(decided.kind, took, decided.finished, is_idle=decided.is_idle)
        yield decided
        if workload.is_through:
            loops.observe(step)


def simulate(
    settings: Settings,
    requests: Sequence[Request],
    *,
    objective: Objective | None = None,
    observers: Iterable[Callable[[Decisions], None]] = (),
    record: Callable[[SomeStep], None] | None = None,
) -> Run:
    """Serve the requests without a device, and measure latencies and costs; no rule is judged.

    The decisions are those of `run_workload`, and so are the metrics. `observers` are called with
    the decisions of each step, `record` with the record of it, which takes longer to make.

    Raises:
        WorkloadError: a request can never be served.
    """
    began = perf_counter()
    config = settings.config
    metrics = metrics_of(settings, {request.id: request for request in requests}, objective)
    steps = simulated_steps(Case(config, tuple(requests)), settings.cost, record)
    with rare_collection():
        end = observed(steps, [metrics.add, *observers])
    unmet = unmet_goals(config, end)
    summary = metrics.summary()
    return Run(
        settings=settings,
        using=SIMULATION,
        summary=summary,
        rules=[violation.rule for violation in unmet],
        broken=unmet,
        refused=None if isinstance(end, EndlessError) else end,
        device=None,
        steps=sum(summary.steps.values()),
        seconds=perf_counter() - began,
        latencies=metrics.latencies(),
        interrupted=stopping(),
    )


# --- verification ---------------------------------------------------------------------------------


SLICE_REQUESTS = 32


def random_slices(requests: Sequence[Request], count: int, seed: int) -> list[list[Request]]:
    """Random runs of consecutive requests, in their order.

    A slice has `SLICE_REQUESTS`, or all of a smaller workload, and is a workload of its own: its
    first request arrives at once. A turn whose predecessor is not in it waits its delay from the
    beginning.

    Raises:
        InputError: there are fewer different slices.
    """
    size = min(SLICE_REQUESTS, len(requests))
    places = range(len(requests) - size + 1)
    if count > len(places):
        slices = counted(len(places), "slice")
        allowed = f"at most {slices} of {counted(size, 'request')}, of {len(requests):,}"
        raise InputError("--verify", count, allowed)
    firsts = sorted(Random(seed).sample(places, count))
    return [_on_their_own(requests[first : first + size]) for first in firsts]


def _on_their_own(requests: Sequence[Request]) -> list[Request]:
    """The requests as a workload that begins with the first arrival among them."""
    there = {request.id for request in requests}
    leading = [request for request in requests if request.after is None]
    steps = (request.arrival for request in leading if request.arrival_time is None)
    times = (request.arrival_time for request in leading if request.arrival_time is not None)
    first_step, first_time = min(steps, default=0), min(times, default=0.0)

    def alone(request: Request) -> Request:
        if request.after is not None:
            return evolve(request, after=request.after if request.after in there else None)
        if request.arrival_time is not None:
            return evolve(request, arrival_time=request.arrival_time - first_time)
        left = None if request.abort_at is None else max(request.abort_at - first_step, 0)
        return evolve(request, arrival=request.arrival - first_step, abort_at=left)

    return [alone(request) for request in requests]


@frozen
class Verified:
    """The judged run of a slice from the request `first` on.

    `differs`: first step that was simulated otherwise.
    """

    first: str
    requests: int
    run: Run
    differs: int | None

    @property
    def holds(self) -> bool:
        """True if every rule holds and every decision is that of the simulation."""
        return self.run.holds and self.differs is None


def verify_slice(settings: Settings, requests: Sequence[Request]) -> Verified:
    """Serve the requests as `run` does, and compare each step with that of a simulation."""
    config, differing = settings.config, list[int]()
    simulated = iter(simulated_steps(Case(config, tuple(requests)), settings.cost))
    decisions = presentation_of(config.policy).decisions

    def compare(step: SomeStep) -> None:
        other = next(simulated, None)
        if other is None or not decisions(config, step).equals(other):
            differing.append(step.index)

    using = scheduler_of(None, config)
    run = run_workload(settings, requests, using=using, observers=[compare])
    if run.holds and not run.interrupted and next(simulated, None) is not None:
        differing.append(run.steps)
    return Verified(requests[0].id, len(requests), run, min(differing, default=None))
