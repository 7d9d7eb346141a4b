"""One run of a workload: a system serves it, every rule and the metrics look at its steps."""

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from multiprocessing import Pipe, Process, current_process
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any
from zlib import crc32

from attrs import define, evolve, fields, frozen

from checks.ending import WorkerDiedError, begin_as_worker, end_at_once, stopping
from checks.harness.case import Case
from checks.harness.clients import Workload
from checks.harness.judging import Broken, Judge, judgeable
from checks.harness.paging import PagedWatch
from checks.harness.system import ENGINE, REFERENCE, Scheduler, Step, numbered, taken_by
from checks.policies import RULES, policy_of
from engine.core.clock import CostModel
from engine.core.faults import ConstraintError
from engine.core.metrics import Metrics, Objective, Summary
from reference.core.guards import GuardError
from spec.core.configuration import PolicyConfig
from spec.core.errors import ConfigError
from spec.core.records import SomeContext, SomeStep
from spec.core.requests import Request
from spec.core.rule import AnyRule

_MOST_BREACHES = 10  # of each rule that are kept, the first ones
_OBJECTS = 100_000  # made and kept before the collector looks at the newest


@frozen
class Settings:
    """A configuration, and what its steps cost on the simulated clock."""

    config: PolicyConfig
    cost: CostModel


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
    in every one of `steps`. `device`: what a paged device did of the same steps, if there is one.
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
    policy = policy_of(config)
    if using == ENGINE and policy.engine is None:
        raise ConfigError("--using", using, f"{REFERENCE} for {policy.name}, which has no engine")
    return using or (REFERENCE if policy.engine is None else ENGINE)


def scheduler_for(using: str, case: Case) -> Scheduler[Any]:
    """The engine on the simulated device, which refuses what hardware cannot do; or the reference.

    Raises:
        ConfigError: the policy has no engine.
        WorkloadError: a request that could never be served.
    """
    policy = policy_of(case.config)
    if scheduler_of(using, case.config) == REFERENCE or policy.engine is None:
        return policy.reference(case)
    return policy.engine(case)


def served(case: Case, using: str = REFERENCE, cost: CostModel | None = None) -> Iterator[Step]:
    """Every step until all requests have arrived and left; `cost`: by default, of steps alone.

    Raises:
        WorkloadError: a request that could never be served.
        ConstraintError: the device refuses the step.
        GuardError: the reference stops.
    """
    yield from served_by(scheduler_for(using, case), case, cost)


def served_by(
    scheduler: Scheduler[Any], case: Case, cost: CostModel | None = None
) -> Iterator[Step]:
    """Every step of a scheduler that serves the case, see `served`."""
    workload = Workload(case.requests, policy_of(case.config).duration_of(case.config, cost))
    for index, action in numbered(workload):
        step = taken_by(scheduler, index, action)
        workload.after(step)
        yield step


def run_workload(
    settings: Settings,
    requests: Sequence[Request],
    *,
    using: str = ENGINE,
    objective: Objective | None = None,
    observers: Iterable[Callable[[Any], None]] = (),
) -> Run:
    """Serve the requests, hold every rule against every step, measure what it cost.

    `using`: "engine" or "reference". `observers` are shown each step, of its policy's class,
    once it was judged. A long workload is served twice side by side, since every run of it is the
    same: a second process judges some of the rules. It has no device: each request samples what it
    samples when served alone, and the device of the first process must have given the same tokens.

    Raises:
        WorkloadError: a request that could never be served.
        RuntimeError: the two were not the same.
        WorkerDiedError: the second process was killed.
    """
    began = perf_counter()
    config, case = settings.config, Case(settings.config, tuple(requests))
    policy, rules = policy_of(config), judgeable(config)
    scheduler = scheduler_for(using, case)
    may_start = not current_process().daemon  # nor may a worker of a cluster under its nanny
    is_long = len(requests) >= _LONG and (os.cpu_count() or 1) > 1 and may_start
    prefixes = policy.judged_apart if is_long else ()
    apart = frozenset(rule.id for rule in rules if rule.id.startswith(prefixes))
    with _judging_apart(settings, requests, using, apart) if apart else nullcontext() as second:
        ctx = policy.context_of(config, requests)
        metrics = _metrics(settings, ctx.requests, objective)
        device = policy.watch(ctx) if policy.watch and using == REFERENCE else None
        judging = _Judging(ctx, [rule for rule in rules if rule.id not in apart])
        looking: list[Callable[[Any], None]] = [metrics.observe]
        looking += [] if device is None else [device.observe]
        looking += [_forgetting(ctx), *observers]
        steps = served_by(scheduler, case, settings.cost)
        with _rarely_collecting():
            refused = _observed(steps, [judging.observe, *looking])
        found = judging.judged(refused)
        if second is not None and not stopping():
            # The second has no device that refuses: up to that step the first judges all.
            other = (
                second()
                if refused is None
                else _judged(settings, case, scheduler_for(using, case), apart)
            )
            found = found if stopping() or other is None else found.together_with(other)
    if stopping():  # what is judged apart is of the whole run
        rules = [rule for rule in rules if rule.id not in apart]
    order = {rule.id: place for place, rule in enumerate(rules)}
    broken = sorted(found.broken, key=lambda one: (one[0], order[one[1]]))
    return Run(
        settings=settings,
        using=using,
        summary=metrics.summary(),
        rules=rules,
        broken=[Broken(step, RULES[rule], what) for step, rule, what in broken],
        refused=refused,
        device=device,
        steps=judging.judge.judged,
        seconds=perf_counter() - began,
        latencies=metrics.latencies(),
        interrupted=stopping(),
    )


def _observed(steps: Iterable[Step], observers: Sequence[Callable[[Any], None]]) -> Refused | None:
    """Show each step to all until a signal comes; the step that was refused, if one was."""
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
    return None


def _metrics(
    settings: Settings, requests: Mapping[str, Request], objective: Objective | None
) -> Metrics[SomeStep]:
    policy = policy_of(settings.config)
    work, limit = partial(policy.work, settings.config), policy.volume_limit(settings.config)
    return Metrics(requests, settings.cost, work, objective=objective, volume_limit=limit)


def _forgetting(ctx: SomeContext) -> Callable[[SomeStep], None]:
    """Drop what is kept of requests that have left, so that memory does not grow with the run."""

    def forget(step: SomeStep) -> None:
        for gone in (*step.finished, *step.aborted):
            ctx.keys.forget(gone)
            ctx.requests[gone].forget_sampled()

    return forget


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


# --- two processes --------------------------------------------------------------------------------

_LONG = 2_000  # requests
_LOOK_SECONDS = 0.1  # how often the main process looks whether a signal came


@frozen
class _Judged:
    """What a judge found in a run; `fingerprint`: of its steps and of what was refused."""

    steps: int
    fingerprint: tuple[int, str]
    broken: tuple[tuple[int, str, str], ...]

    def together_with(self, other: "_Judged") -> "_Judged":
        """What both found, of the same steps."""
        if (self.steps, self.fingerprint) != (other.steps, other.fingerprint):
            raise RuntimeError(f"served twice, the steps differ: {self} and {other}")
        return evolve(self, broken=self.broken + other.broken)


@define(init=False)
class _Judging:
    """A judge over a run, and a checksum of what its steps did and yielded."""

    judge: Judge
    checksum: int
    broken: list[Broken]

    def __init__(self, ctx: Any, rules: Iterable[AnyRule]) -> None:
        self.judge, self.checksum, self.broken = Judge(ctx, rules), 0, []

    def observe(self, step: Step) -> None:
        for one in self.judge.observe(step):
            if sum(other.rule is one.rule for other in self.broken) < _MOST_BREACHES:
                self.broken.append(one)
        seen = (step.time, step.kind, step.scheduled, step.outputs, step.refusal)
        self.checksum = crc32(repr(seen).encode(), self.checksum)

    def judged(self, refused: Refused | None) -> _Judged:
        broken = tuple((one.step, one.rule.id, one.found) for one in self.broken)
        return _Judged(self.judge.judged, (self.checksum, str(refused)), broken)


@contextmanager
def _judging_apart(
    settings: Settings, requests: Sequence[Request], using: str, rules: frozenset[str]
) -> Iterator[Callable[[], _Judged | None]]:
    """What waits for a second process that judges these rules; it ends with the block.

    A signal ends the waiting without an answer.
    """
    receiver, sender = Pipe(duplex=False)
    process = Process(target=_judge_apart, args=(sender, settings, requests, using, rules))
    process.start()
    sender.close()

    def judged() -> _Judged | None:
        try:
            while not receiver.poll(_LOOK_SECONDS):
                if stopping():
                    return None
            found: _Judged = receiver.recv()
        except EOFError:
            raise WorkerDiedError("a worker process was killed, which judged the run") from None
        return found

    try:
        yield judged
    finally:
        end_at_once(process)
        process.join()


def _judge_apart(
    sender: Connection,
    settings: Settings,
    requests: Sequence[Request],
    using: str,
    rules: frozenset[str],
) -> None:
    """Send what these rules say of the whole run, without a device."""
    begin_as_worker()
    case = Case(settings.config, tuple(requests))
    without = None if using == REFERENCE else policy_of(settings.config).without_device
    scheduler = scheduler_for(using, case) if without is None else without(case)
    sender.send(_judged(settings, case, scheduler, rules))


def _judged(
    settings: Settings, case: Case, scheduler: Scheduler[Any], rules: frozenset[str]
) -> _Judged:
    """What these rules say of the whole run."""
    ctx = policy_of(settings.config).context_of(settings.config, case.requests)
    judging = _Judging(ctx, [rule for rule in judgeable(settings.config) if rule.id in rules])
    steps = served_by(scheduler, case, settings.cost)
    with _rarely_collecting():
        refused = _observed(steps, [judging.observe, _forgetting(ctx)])
    return judging.judged(refused)
