"""One run of a workload: a system serves it, every rule and the metrics look at its steps."""

import gc
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any, NoReturn

from attrs import define, field, fields, frozen

from checks.ending import stopping
from checks.export.policy import presentation_of
from checks.harness.case import Case
from checks.harness.clients import Workload
from checks.harness.endless import EndlessError, Loops
from checks.harness.incremental.judging import judge_of_run
from checks.harness.judging import Broken, Judge, judgeable
from checks.harness.paging import PagedWatch
from checks.harness.policy import evidence_of
from checks.harness.settings import Settings
from checks.harness.slices import Judging, judged_in_slices
from checks.harness.system import ENGINE, REFERENCE, Scheduler, Step, numbered, taken_by
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

_OBJECTS = 100_000  # made and kept before the collector looks at the newest


@frozen
class Refused:
    """A step that the device refused, or a transition of it that a guard forbids.

    Nothing of it was done, and the run ended there.
    """

    step: int
    error: ConstraintError | GuardError

    def __str__(self) -> str:
        return f"step {self.step}: {self.error}"


@frozen(kw_only=True)
class Run:
    """What came of a run.

    `using`: what scheduled. `broken`: the first few breaches of each of `rules`, which were judged
    in every one of `steps`; where these would repeat for ever, also the goals that no state meets.
    `device`: what a paged device did of the same steps, if there is one.
    `seconds`: of the clock on the wall. `latencies`: as `Metrics` has them. `interrupted`: a signal
    ended it before its end.
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
        """Rules go by their ids: what judges is at hand wherever a run is read."""
        said = {one.name: getattr(self, one.name) for one in fields(Run)}
        said["rules"] = [rule.id for rule in self.rules]
        said["broken"] = [(one.step, one.rule.id, one.found) for one in self.broken]
        return _run_of, (said,)


def _run_of(said: Mapping[str, Any]) -> Run:
    rules = [RULES[id_] for id_ in said["rules"]]
    broken = [Broken(step, RULES[id_], found) for step, id_, found in said["broken"]]
    return Run(**{**said, "rules": rules, "broken": broken})


def scheduler_of(using: str | None, config: PolicyConfig) -> str:
    """The scheduler that is named, else the engine, where the policy has one.

    Raises:
        ConfigError: the engine is named, and the policy has none.
    """
    engine = evidence_of(config.policy).engine
    if using == ENGINE and engine is None:
        raise ConfigError("--using", using, f"{REFERENCE} for {config.policy}, which has no engine")
    return using or (REFERENCE if engine is None else ENGINE)


def scheduler_for(using: str, case: Case) -> Scheduler[Any]:
    """The engine on the simulated device, which refuses what hardware cannot do; or the reference.

    Raises:
        ConfigError: the policy has no engine.
        WorkloadError: a request that could never be served.
    """
    evidence = evidence_of(case.config.policy)
    if scheduler_of(using, case.config) == REFERENCE or evidence.engine is None:
        return evidence.reference(case)
    return evidence.engine.start(case)


def served(case: Case, using: str = REFERENCE, cost: CostModel | None = None) -> Iterator[Step]:
    """Every step until all requests have arrived and left; `cost`: by default, of steps alone.

    Raises:
        WorkloadError: a request that could never be served.
        ConstraintError: the device refuses the step.
        GuardError: the reference stops.
        EndlessError: the steps repeat for ever.
    """
    yield from served_by(scheduler_for(using, case), case, cost)


def served_by(
    scheduler: Scheduler[Any], case: Case, cost: CostModel | None = None
) -> Iterator[Step]:
    """Every step of a scheduler that serves the case, see `served`."""
    duration = presentation_of(case.config.policy).duration_of(case.config, cost)
    workload = Workload(case.requests, duration)
    loops = Loops()
    for index, action in numbered(workload):
        step = taken_by(scheduler, index, action)
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
    """Serve the requests, hold every rule against every step, measure what it cost.

    `using`: "engine" or "reference". `observers` are shown each step, of its policy's class. Steps
    are judged in slices, in a long run by processes beside this one; `whole`: each on whole states,
    else by what it changed. What the device of an engine samples must be what each request samples
    when it is served alone.

    Raises:
        WorkloadError: a request that could never be served.
        RuntimeError: a token that is another one.
        WorkerDiedError: a process that judged was killed.
    """
    began = perf_counter()
    config, case = settings.config, Case(settings.config, tuple(requests))
    claims, rules = claims_of(config.policy), judgeable(config)
    scheduler = scheduler_for(using, case)
    ctx = remembering(claims.context_of(config, requests))
    metrics = _metrics(settings, ctx.requests, objective)
    watch = evidence_of(config.policy).watch
    device = watch(ctx) if watch and using == REFERENCE else None
    # First, so that rules that ask for tokens find them worked out.
    answers = [_Answers(ctx.requests)] if using == ENGINE else []
    judge = Judge(ctx, rules) if whole else judge_of_run(ctx, rules)
    judges: list[Judging] = [*answers, judge]
    with judged_in_slices(judges, _forgetting(ctx)) as judging:
        looking: list[Callable[[Any], None]] = [metrics.observe]
        looking += [] if device is None else [device.observe]
        looking += [*(one.note for one in answers), judging.observe, *observers]
        with _rarely_collecting():
            end = _observed(served_by(scheduler, case, settings.cost), looking)
        breaches = judging.breaches()
    order = {rule.id: place for place, rule in enumerate(rules)}
    breaches.sort(key=lambda one: (one[0], order[one[1]]))
    broken = [Broken(step, RULES[rule], what) for step, rule, what in breaches]
    if isinstance(end, EndlessError):
        unmet = dict(end.unmet(claims.registry.applicable(config)))
        broken += [Broken(end.last, rule, what) for rule, what in unmet.items()]
        rules += unmet
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


def _observed(
    steps: Iterable[Step], observers: Sequence[Callable[[Any], None]]
) -> Refused | EndlessError | None:
    """Show each step to all until a signal comes; what else ended them early, if anything did."""
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


def _metrics(
    settings: Settings, requests: Mapping[str, Request], objective: Objective | None
) -> Metrics[SomeStep]:
    shown = presentation_of(settings.config.policy)
    work, limit = partial(shown.work, settings.config), shown.volume_limit(settings.config)
    return Metrics(requests, settings.cost, work, objective=objective, volume_limit=limit)


@define
class _Answers:
    """What requests sample, held against what each samples alone."""

    _requests: Mapping[str, RememberedRequest]
    # Of those that have not left, or not before the slice that is to be judged next.
    _sampled: defaultdict[str, list[int]] = field(
        factory=lambda: defaultdict[str, list[int]](list), init=False
    )

    def note(self, step: SomeStep) -> None:
        """Keep the tokens of a step, as it is taken; it is judged later, perhaps elsewhere."""
        for name, tokens in step.outputs.items():
            self._sampled[name] += tokens

    def observe_all(self, steps: Sequence[SomeStep]) -> tuple[()]:
        """The next steps, all of which were noted; they break no rule by their tokens.

        All that a request has sampled is looked at: it is worked out at once, and a process that
        judges knows nothing of what was worked out before.

        Raises:
            RuntimeError: a request sampled another token.
        """
        if not all(self._requests[name].samples(some) for name, some in self._sampled.items()):
            self._refuse(steps)
        self.pass_over(*steps)
        return ()

    def _refuse(self, steps: Sequence[SomeStep]) -> NoReturn:
        """Name the first token that is another one."""
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
        raise AssertionError("tokens that are right one by one are right together")

    def pass_over(self, *steps: SomeStep) -> None:
        """Drop what requests sampled that left with the next steps."""
        for step in steps:
            for name in (*step.finished, *step.aborted):
                self._sampled.pop(name, None)


def _forgetting(ctx: SomeContext) -> Callable[[SomeStep], None]:
    """Drop what is kept of requests that have left, so that memory does not grow with the run."""

    def forget_gone(step: SomeStep) -> None:
        for gone in (*step.finished, *step.aborted):
            forget(ctx, gone)

    return forget_gone


@contextmanager
def _rarely_collecting() -> Iterator[None]:
    """The collector of cycles looks rarely, and never at what is there already.

    A step leaves thousands of objects of which all but the newest go at once, by their counts.
    """
    usual = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_OBJECTS)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()
