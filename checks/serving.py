"""One run of a workload: who schedules, who looks at its steps, how it ended."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import ExitStack
from time import perf_counter
from zlib import crc32

from attrs import define, evolve, frozen

from checks.configuration import Settings
from checks.fuzz.reference import reference_target
from checks.fuzz.target import Target
from checks.running import Broken, Judge, judgeable, serve_with
from checks.targets import EngineTarget
from engine.device.faults import ConstraintError
from engine.device.spyre import SpyreDevice
from engine.metrics import Metrics, Objective, Summary
from spec.config import Config
from spec.records import Context, Step
from spec.requests import BlockKeys, Request
from spec.rules import REGISTRY, Rule

ENGINE, REFERENCE = "engine", "reference"


@frozen
class Refused:
    """A step that the device refused: nothing of it was done, and the run ended there."""

    step: int
    error: ConstraintError

    def __str__(self) -> str:
        return f"step {self.step}: {self.error}"


@frozen(kw_only=True)
class Run:
    """What came of a run.

    `broken`: the first few breaches of `rules`, each of which was judged in every one of `steps`.
    `seconds`: of the clock on the wall.
    """

    settings: Settings
    summary: Summary
    rules: Sequence[Rule]
    broken: Sequence[Broken]
    refused: Refused | None
    steps: int
    seconds: float

    @property
    def holds(self) -> bool:
        """True if no rule was broken and no step refused."""
        return not self.broken and self.refused is None


def context_of(config: Config, requests: Iterable[Request]) -> Context:
    """What rules look up, whoever schedules."""
    by_id = {request.id: request for request in requests}
    return Context(config, by_id, BlockKeys(by_id, config.block_size))


def target_of(using: str, config: Config, requests: Sequence[Request]) -> Target:
    """The engine on the simulated device, which refuses what hardware cannot do; or the reference.

    Raises:
        WorkloadError: a request that could never be served.
    """
    if using == REFERENCE:
        return reference_target(config, requests)
    return EngineTarget.on(SpyreDevice(config), config, requests)


def run_workload(
    settings: Settings,
    requests: Sequence[Request],
    *,
    using: str = ENGINE,
    objective: Objective | None = None,
    observers: Iterable[Callable[[Step], None]] = (),
) -> Run:
    """Serve the requests, hold every rule against every step, measure what it cost.

    `using`: "engine" or "reference". `observers` are shown each step once it was judged. A long
    workload is served twice side by side, since every run of it is the same: a second process
    judges the rules about blocks and their contents.

    Raises:
        WorkloadError: a request that could never be served.
        RuntimeError: the two were not the same.
    """
    began = perf_counter()
    rules = judgeable(settings.config)
    with ExitStack() as stack:
        others: Future[_Judged] | None = None
        if len(requests) >= _LONG and (os.cpu_count() or 1) > 1:
            second = stack.enter_context(ProcessPoolExecutor(1))
            others = second.submit(_judged, settings, requests, using, _about_blocks(rules))
        own = [rule for rule in rules if others is None or rule.id not in _about_blocks(rules)]
        ctx = context_of(settings.config, requests)
        metrics = Metrics(settings.config, ctx.requests, settings.cost, objective)
        judge = Judge(ctx, rules=own)
        fingerprint = _Fingerprint()
        watching = [judge.observe, fingerprint.observe, _forgetting(ctx), metrics.observe]
        refused = _watched(_steps(settings, requests, using), [*watching, *observers])
        found = _Judged.by(judge, fingerprint, refused)
        if others is not None:
            found = found.together_with(others.result())
    order = {rule.id: place for place, rule in enumerate(rules)}
    broken = sorted(found.broken, key=lambda one: (one[0], order[one[1]]))[: judge.keep]
    return Run(
        settings=settings,
        summary=metrics.summary(),
        rules=rules,
        broken=[Broken(step, REGISTRY[rule], told) for step, rule, told in broken],
        refused=refused,
        steps=judge.judged,
        seconds=perf_counter() - began,
    )


# --- two processes ------------------------------------------------------------------------------

_LONG = 2_000  # requests


def _about_blocks(rules: Iterable[Rule]) -> frozenset[str]:
    """About half of the work of judging: these rules look into the block pool."""
    return frozenset(rule.id for rule in rules if rule.id.startswith(("BLK-", "SPY-PFX-")))


@define
class _Fingerprint:
    """By what the steps of a run are known: a checksum of what they did and yielded."""

    value: int = 0

    def observe(self, step: Step) -> None:
        seen = (step.time, step.kind, step.tkv, step.outputs, step.refusal)
        self.value = crc32(repr(seen).encode(), self.value)


@frozen
class _Judged:
    """What a judge found in a run; `fingerprint`: of its steps and of what was refused."""

    steps: int
    fingerprint: tuple[int, str]
    broken: tuple[tuple[int, str, str], ...]

    @staticmethod
    def by(judge: Judge, fingerprint: _Fingerprint, refused: Refused | None) -> "_Judged":
        """The judge's own finding."""
        broken = tuple((one.step, one.rule.id, one.found) for one in judge.broken)
        return _Judged(judge.judged, (fingerprint.value, str(refused)), broken)

    def together_with(self, other: "_Judged") -> "_Judged":
        """What both found, of the same steps."""
        if (self.steps, self.fingerprint) != (other.steps, other.fingerprint):
            raise RuntimeError(f"served twice, the steps differ: {self} and {other}")
        return evolve(self, broken=self.broken + other.broken)


def _judged(
    settings: Settings, requests: Sequence[Request], using: str, rules: frozenset[str]
) -> _Judged:
    """What these rules say of the whole run."""
    ctx = context_of(settings.config, requests)
    judge = Judge(ctx, rules=[rule for rule in judgeable(settings.config) if rule.id in rules])
    fingerprint = _Fingerprint()
    watching = [judge.observe, fingerprint.observe, _forgetting(ctx)]
    refused = _watched(_steps(settings, requests, using), watching)
    return _Judged.by(judge, fingerprint, refused)


def _forgetting(ctx: Context) -> Callable[[Step], None]:
    """Drop what is kept of requests that have left, so that memory does not grow with the run."""

    def forget(step: Step) -> None:
        for gone in (*step.finished, *step.aborted):
            ctx.keys.forget(gone)
            ctx.requests[gone].forget_sampled()

    return forget


def _steps(settings: Settings, requests: Sequence[Request], using: str) -> Iterator[Step]:
    target = target_of(using, settings.config, requests)
    return serve_with(target, settings.config, requests, settings.cost)


def _watched(steps: Iterable[Step], watching: Sequence[Callable[[Step], None]]) -> Refused | None:
    """Show each step to all; the step that the device refused, if it did."""
    index = 0
    try:
        for step in steps:
            for watch in watching:
                watch(step)
            index = step.index + 1
    except ConstraintError as error:
        return Refused(index, error)
    return None
