"""Simulations: a scheduler serves a workload without a device, and no rule judges its steps."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any

from attrs import frozen

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
from engine.core.clock import CostModel
from engine.core.decisions import Decisions
from engine.core.metrics import Objective
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
    scheduler: Scheduler[Any] = evidence.reference(case)
    if evidence.engine is not None and evidence.engine.simulated is not None:
        scheduler = evidence.engine.simulated(case, record is not None)
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


@frozen
class Verified:
    """The judged run of some requests. `differs`: first step that was simulated otherwise."""

    requests: int
    run: Run
    differs: int | None

    @property
    def holds(self) -> bool:
        """True if every rule holds and every decision is that of the simulation."""
        return self.run.holds and self.differs is None


def verify_first(settings: Settings, requests: Sequence[Request]) -> Verified:
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
    return Verified(len(requests), run, min(differing, default=None))
