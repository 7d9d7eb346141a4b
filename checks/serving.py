"""One run of a workload: who schedules, who looks at its steps, how it ended."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter

from attrs import frozen

from checks.configuration import Settings
from checks.fuzz.reference import reference_target
from checks.fuzz.target import Target
from checks.running import Broken, Judge, serve_with
from checks.targets import EngineTarget
from engine.device.faults import ConstraintError
from engine.device.spyre import SpyreDevice
from engine.metrics import Metrics, Objective, Summary
from spec.config import Config
from spec.records import Context, Step
from spec.requests import BlockKeys, Request
from spec.rules import Rule

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

    `using`: "engine" or "reference". `observers` are shown each step once it was judged.

    Raises:
        WorkloadError: a request that could never be served.
    """
    config, began = settings.config, perf_counter()
    ctx = context_of(config, requests)
    judge, metrics = Judge(ctx), Metrics(config, ctx.requests, settings.cost, objective)
    watching = [judge.observe, metrics.observe, *observers]
    refused = _watched(_steps(settings, requests, using), watching)
    return Run(
        settings=settings,
        summary=metrics.summary(),
        rules=judge.rules,
        broken=judge.broken,
        refused=refused,
        steps=judge.judged,
        seconds=perf_counter() - began,
    )


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
