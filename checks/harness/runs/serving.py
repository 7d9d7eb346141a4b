"""Runs of a workload: a scheduler serves it, the rules and the metrics observe each step."""

import gc
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from time import perf_counter
from typing import Any, NoReturn

from attrs import define, field, fields, frozen

from checks.ending import stopping
from checks.export.policy import presentation_of
from checks.harness.case import Case
from checks.harness.clients import Workload
from checks.harness.incremental.judging import judge_of_run
from checks.harness.judging import Broken, Judge, judgeable
from checks.harness.paging import PagedWatch
from checks.harness.policy import evidence_of
from checks.harness.runs.endless import EndlessError, Loops
from checks.harness.runs.settings import Settings
from checks.harness.runs.slices import Judging, Slices
from checks.harness.system import ENGINE, REFERENCE, Scheduler, Step, numbered, take_step
from checks.registry import RULES, claims_of
from checks.remembered import RememberedRequest, forget, remembering
from engine.core.clock import CostModel
from engine.core.faults import ConstraintError
from engine.core.metrics import Metrics, Objective, Summary
from reference.core.guards import GuardError
from spec.core.configuration import PolicyConfig
from spec.core.errors import ConfigError
from spec.core.records import SomeContext, SomeStep
from spec.core.requests import Request
from spec.core.rule import AnyRule

_OBJECTS = 100_000  # new objects before the garbage collector runs


@frozen
class Refused:
    """A step that the device refused, or whose transition a guard forbids; it ended the run."""

    step: int
    error: ConstraintError | GuardError

    def __str__(self) -> str:
        return f"step {self.step}: {self.error}"


@frozen(kw_only=True)
class Run:
    """The result of a run.

    `using`: "engine" or "reference". `broken`: the first violations of each of the `rules`, which
    judged each of the `steps`; of a livelock also the goals that no state meets. `device`: the
    paged device beside the reference, if any. `seconds`: wall time. `latencies`: see `Metrics`.
    `interrupted`: a signal ended the run early.
    """

    settings: Settings
    using: str
    summary: Summary
    rules: Sequence[AnyRule]
    broken: Sequence[Broken]
    refused: Refused | None
    device: PagedWatch[Any] | None
    steps: int
    seconds: float
    latencies: Mapping[str, Mapping[float, int]]
    interrupted: bool = False

    @property
    def holds(self) -> bool:
        """True if no rule was broken, no step refused and no token wrong."""
        wrong = self.device is not None and self.device.wrong
        return not self.broken and self.refused is None and not wrong

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle rules by their ids."""
        values = {key.name: getattr(self, key.name) for key in fields(Run)}
        values["rules"] = [rule.id for rule in self.rules]
        values["broken"] = [
            (violation.step, violation.rule.id, violation.found) for violation in self.broken
        ]
        return _run_of, (values,)


def _run_of(values: Mapping[str, Any]) -> Run:
    rules = [RULES[id_] for id_ in values["rules"]]
    broken = [Broken(step, RULES[id_], found) for step, id_, found in values["broken"]]
    return Run(**{**values, "rules": rules, "broken": broken})


def scheduler_of(using: str | None, config: PolicyConfig) -> str:
    """The named scheduler; by default the engine if the policy has one, else the reference.

    Raises:
        ConfigError: the engine is named and the policy has none.
    """
    engine = evidence_of(config.policy).engine
    if using == ENGINE and engine is None:
        raise ConfigError("--using", using, f"{REFERENCE} for {config.policy}, which has no engine")
    return using or (REFERENCE if engine is None else ENGINE)


def scheduler_for(using: str, case: Case) -> Scheduler[Any]:
    """The engine on the simulated device, or the reference, for a case.

    Raises:
        ConfigError: the policy has no engine.
        WorkloadError: a request can never be served.
    """
    evidence = evidence_of(case.config.policy)
    if scheduler_of(using, case.config) == REFERENCE or evidence.engine is None:
        return evidence.reference(case)
    return evidence.engine.start(case)


def served(case: Case, using: str = REFERENCE, cost: CostModel | None = None) -> Iterator[Step]:
    """The steps until all requests have arrived and left; `cost`: by default, of steps alone.

    Raises:
        WorkloadError: a request can never be served.
        ConstraintError: the device refuses the step.
        GuardError: the reference stops.
        EndlessError: the steps repeat for ever.
    """
    yield from served_by(scheduler_for(using, case), case, cost)


def served_by(
    scheduler: Scheduler[Any], case: Case, cost: CostModel | None = None
) -> Iterator[Step]:
    """The steps of a scheduler that serves the case, see `served`."""
    duration = presentation_of(case.config.policy).duration_of(case.config, cost)
    workload = Workload(case.requests, duration)
    loops = Loops()
    for index, action in numbered(workload):
        step = take_step(scheduler, index, action)
        workload.after(step)
        yield step
        if workload.is_through:
            loops.observe(step)


def run_workload(
    settings: Settings,
    requests: Sequence[Request],
    *,
    using: str = ENGINE,
    objective: Objective | None = None,
    observers: Iterable[Callable[[Any], None]] = (),
    whole: bool = False,
) -> Run:
    """Serve the requests, judge every step by every rule, and measure latencies and costs.

    `using`: "engine" or "reference". `observers` are called with each step. Steps are judged in
    slices, in long runs by other processes; `whole`: on whole states, else by what a step changed.
    The tokens of an engine's device must equal those of each request served alone.

    Raises:
        WorkloadError: a request can never be served.
        RuntimeError: a token differs from that of serving the request alone.
        WorkerDiedError: a judging process was killed.
    """
    began = perf_counter()
    config, case = settings.config, Case(settings.config, tuple(requests))
    claims, rules = claims_of(config.policy), judgeable(config)
    scheduler = scheduler_for(using, case)
    ctx = remembering(claims.context_of(config, requests))
    metrics = metrics_of(settings, ctx.requests, objective)
    watch = evidence_of(config.policy).watch
    device = watch(ctx) if watch and using == REFERENCE else None
    # First, so that the tokens are computed before rules read them.
    answers = [_Answers(ctx.requests)] if using == ENGINE else []
    judge = Judge(ctx, rules) if whole else judge_of_run(ctx, rules)
    judges: list[Judging] = [*answers, judge]
    with closing(Slices(judges, _forgetting(ctx))) as judging:
        looking: list[Callable[[Any], None]] = [metrics.observe]
        looking += [] if device is None else [device.observe]
        looking += [*(answer.note for answer in answers), judging.observe, *observers]
        with rare_collection():
            end = observed(served_by(scheduler, case, settings.cost), looking)
        breaches = judging.breaches()
    order = {rule.id: place for place, rule in enumerate(rules)}
    breaches.sort(key=lambda breach: (breach[0], order[breach[1]]))
    broken = [Broken(step, RULES[rule], violation) for step, rule, violation in breaches]
    unmet = unmet_goals(config, end)
    broken += unmet
    rules += [violation.rule for violation in unmet]
    return Run(
        settings=settings,
        using=using,
        summary=metrics.summary(),
        rules=rules,
        broken=broken,
        refused=end if isinstance(end, Refused) else None,
        device=device,
        steps=judging.steps,
        seconds=perf_counter() - began,
        latencies=metrics.latencies(),
        interrupted=stopping(),
    )


def unmet_goals(config: PolicyConfig, end: Exception | Refused | None) -> list[Broken]:
    """The goals that requests never reach, if the run ended because its steps repeat for ever."""
    if not isinstance(end, EndlessError):
        return []
    unmet = end.unmet(claims_of(config.policy).registry.applicable(config))
    return [Broken(end.last, rule, violation) for rule, violation in unmet]


def observed(
    steps: Iterable[Any], observers: Sequence[Callable[[Any], None]]
) -> Refused | EndlessError | None:
    """Pass each step to the observers until a signal comes; returns the error that ended them."""
    index = 0
    try:
        for step in steps:
            for observe in observers:
                observe(step)
            index = step.index + 1
            if stopping():
                return None
    except (ConstraintError, GuardError) as error:
        return Refused(index, error)
    except EndlessError as error:
        return error
    return None


def metrics_of(
    settings: Settings, requests: Mapping[str, Request], objective: Objective | None
) -> Metrics[SomeStep]:
    """Metrics of a run before its first step."""
    shown = presentation_of(settings.config.policy)
    work, limit = partial(shown.work, settings.config), shown.volume_limit(settings.config)
    return Metrics(requests, settings.cost, work, objective=objective, volume_limit=limit)


@define
class _Answers:
    """Compares sampled tokens with those of each request served alone."""

    _requests: Mapping[str, RememberedRequest]
    # Of requests that have not left before the next slice.
    _sampled: defaultdict[str, list[int]] = field(
        factory=lambda: defaultdict[str, list[int]](list), init=False
    )

    def note(self, step: SomeStep) -> None:
        """Keep the tokens of a step, which is judged later and perhaps in another process."""
        for name, tokens in step.outputs.items():
            self._sampled[name] += tokens

    def observe_all(self, steps: Sequence[SomeStep]) -> tuple[()]:
        """Check the tokens of the next steps, all of which were noted; no rule is broken.

        All tokens of a request are checked: a judging process has no earlier results.

        Raises:
            RuntimeError: a request sampled another token.
        """
        if not all(self._requests[name].samples(tokens) for name, tokens in self._sampled.items()):
            self._refuse(steps)
        self.pass_over(*steps)
        return ()

    def _refuse(self, steps: Sequence[SomeStep]) -> NoReturn:
        """Raise the error for the first wrong token."""
        places = {name: len(tokens) for name, tokens in self._sampled.items()}
        for step in steps:
            for name, tokens in step.outputs.items():
                places[name] -= len(tokens)
        for step in steps:
            for name, tokens in step.outputs.items():
                for place, token in enumerate(tokens, places[name]):
                    if token != (alone := self._requests[name].output_token(place)):
                        raise RuntimeError(
                            f"step {step.index}: output {place} of {name} is {token}, served alone"
                            f" it is {alone}"
                        )
                places[name] += len(tokens)
        raise AssertionError("outputs differ from the expected ones, but no single token does")

    def pass_over(self, *steps: SomeStep) -> None:
        """Drop the tokens of requests that left with the next steps."""
        for step in steps:
            for name in (*step.finished, *step.aborted):
                self._sampled.pop(name, None)


def _forgetting(ctx: SomeContext) -> Callable[[SomeStep], None]:
    """Drops the remembered data of requests that left, so that memory stays bounded."""

    def forget_gone(step: SomeStep) -> None:
        for gone in (*step.finished, *step.aborted):
            forget(ctx, gone)

    return forget_gone


@contextmanager
def rare_collection() -> Iterator[None]:
    """Run the garbage collector rarely, and never on existing objects.

    Nearly all of the thousands of objects of a step are freed by their reference counts.
    """
    usual = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_OBJECTS)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()
