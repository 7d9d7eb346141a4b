"""One run of a workload: who schedules, who looks at its steps, how it ended."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import Pipe, Process
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any
from zlib import crc32

from attrs import define, evolve, frozen

from checks.cli.configuration import Settings
from checks.harness.paging import PagedWatch
from checks.harness.running import Broken, Judge, duration_of, judgeable, serve_with
from checks.policies import RULES, Server, policy_of
from engine.core.faults import ConstraintError
from engine.core.metrics import Metrics, Objective, Summary
from reference.core.guards import GuardError
from spec.core.configuration import PolicyConfig
from spec.core.errors import ConfigError
from spec.core.records import SomeContext, SomeStep
from spec.core.requests import Request
from spec.core.rule import AnyRule

ENGINE, REFERENCE = "engine", "reference"


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

    `using`: who scheduled. `broken`: the first few breaches of each of `rules`, which were judged
    in every one of `steps`. `device`: what a paged device did of the same steps, if there is one.
    `seconds`: of the clock on the wall.
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

    @property
    def holds(self) -> bool:
        """True if no rule was broken, no step refused and no token wrong."""
        wrong = self.device is not None and self.device.wrong
        return not self.broken and self.refused is None and not wrong


def scheduler_of(using: str | None, config: PolicyConfig) -> str:
    """Who schedules: whoever is named, else the engine, where the policy has one.

    Raises:
        ConfigError: the engine is named, and the policy has none.
    """
    policy = policy_of(config)
    if using == ENGINE and policy.engine is None:
        raise ConfigError("--using", using, f"{REFERENCE} for {policy.name}, which has no engine")
    return using or (REFERENCE if policy.engine is None else ENGINE)


def server_of(using: str, config: PolicyConfig, requests: Sequence[Request]) -> Server[SomeStep]:
    """The engine on the simulated device, which refuses what hardware cannot do; or the reference.

    Raises:
        ConfigError: the policy has no engine.
        WorkloadError: a request that could never be served.
    """
    policy = policy_of(config)
    if scheduler_of(using, config) == REFERENCE or policy.engine is None:
        return policy.reference(config, requests)
    return policy.engine(config, requests)


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
    """
    began = perf_counter()
    policy, config = policy_of(settings.config), settings.config
    rules = judgeable(config)
    server = server_of(using, config, requests)
    apart = frozenset(rule.id for rule in rules if rule.id.startswith(policy.judged_apart))
    with ExitStack() as stack:
        second: Callable[[], _Judged] | None = None
        if len(requests) >= _LONG and (os.cpu_count() or 1) > 1:
            second = stack.enter_context(_second(settings, requests, using, apart))
        own = [rule for rule in rules if second is None or rule.id not in apart]
        ctx = policy.context_of(config, requests)
        metrics = _metrics(settings, ctx.requests, objective)
        judge = Judge(ctx, rules=own)
        fingerprint = _Fingerprint()
        device = None if policy.watch is None else policy.watch(ctx)
        watching: list[Callable[[Any], None]] = [
            judge.observe,
            fingerprint.observe,
            metrics.observe,
        ]
        watching += [] if device is None else [device.observe]
        watching.append(_forgetting(ctx))
        refused = _watched(_steps(settings, requests, server), [*watching, *observers])
        found = _Judged.by(judge, fingerprint, refused)
        if second is not None:
            found = found.together_with(
                # The second has no device that refuses: up to that step the first judges all.
                second() if refused is None else _judged(settings, requests, using, apart)
            )
    order = {rule.id: place for place, rule in enumerate(rules)}
    broken = sorted(found.broken, key=lambda one: (one[0], order[one[1]]))
    return Run(
        settings=settings,
        using=using,
        summary=metrics.summary(),
        rules=rules,
        broken=[Broken(step, RULES[rule], told) for step, rule, told in broken],
        refused=refused,
        device=device,
        steps=judge.judged,
        seconds=perf_counter() - began,
    )


# --- two processes ------------------------------------------------------------------------------

_LONG = 2_000  # requests


@contextmanager
def _second(
    settings: Settings, requests: Sequence[Request], using: str, rules: frozenset[str]
) -> Iterator[Callable[[], "_Judged"]]:
    """A process that serves the same without a device and judges these rules: what waits for it.

    It is ended where nobody waits for it any more.
    """
    receiver, sender = Pipe(duplex=False)
    process = Process(target=_tell, args=(sender, settings, requests, using, rules))
    process.start()
    sender.close()

    def told() -> _Judged:
        try:
            judged: _Judged = receiver.recv()
        except EOFError:
            raise RuntimeError("the second process ended without a finding") from None
        return judged

    try:
        yield told
    finally:
        process.terminate()
        process.join()


def _tell(
    sender: Connection,
    settings: Settings,
    requests: Sequence[Request],
    using: str,
    rules: frozenset[str],
) -> None:
    sender.send(_judged(settings, requests, using, rules, with_device=False))


@define
class _Fingerprint:
    """By what the steps of a run are known: a checksum of what they did and yielded."""

    value: int = 0

    def observe(self, step: SomeStep) -> None:
        seen = (step.time, step.kind, step.scheduled, step.outputs, step.refusal)
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
    settings: Settings,
    requests: Sequence[Request],
    using: str,
    rules: frozenset[str],
    *,
    with_device: bool = True,
) -> _Judged:
    """What these rules say of the whole run."""
    policy = policy_of(settings.config)
    ctx = policy.context_of(settings.config, requests)
    without = None if with_device or using == REFERENCE else policy.without_device
    server = (without or partial(server_of, using))(settings.config, requests)
    judge = Judge(ctx, rules=[rule for rule in judgeable(settings.config) if rule.id in rules])
    fingerprint = _Fingerprint()
    watching = [judge.observe, fingerprint.observe, _forgetting(ctx)]
    refused = _watched(_steps(settings, requests, server), watching)
    return _Judged.by(judge, fingerprint, refused)


def _metrics(
    settings: Settings, requests: Mapping[str, Request], objective: Objective | None
) -> Metrics[SomeStep]:
    config = settings.config
    policy = policy_of(config)
    work, limit = partial(policy.work, config), policy.volume_limit(config)
    return Metrics(requests, settings.cost, work, objective=objective, volume_limit=limit)


def _forgetting(ctx: SomeContext) -> Callable[[SomeStep], None]:
    """Drop what is kept of requests that have left, so that memory does not grow with the run."""

    def forget(step: SomeStep) -> None:
        for gone in (*step.finished, *step.aborted):
            ctx.keys.forget(gone)
            ctx.requests[gone].forget_sampled()

    return forget


def _steps(
    settings: Settings, requests: Sequence[Request], server: Server[SomeStep]
) -> Iterator[SomeStep]:
    return serve_with(server, duration_of(settings.config, settings.cost), requests)


def _watched(
    steps: Iterable[SomeStep], watching: Sequence[Callable[[SomeStep], None]]
) -> Refused | None:
    """Show each step to all; the step that was refused, if one was."""
    index = 0
    try:
        for step in steps:
            for watch in watching:
                watch(step)
            index = step.index + 1
    except (ConstraintError, GuardError) as error:
        return Refused(index, error)
    return None
