"""The engine as a scheduler that serves one case, on the simulated device or as specified."""

from collections.abc import Iterable

import numpy as np
from attrs import define, evolve, field

from checks.harness.case import Case
from checks.harness.system import Action
from engine.core.tensors import NO_TOKENS, Tensor
from engine.spyre.device import Device, SpyreDevice
from engine.spyre.observing import StepObserver
from engine.spyre.scheduler import DecodePlan, IdlePlan, Plan, PrefillPlan, Scheduler
from engine.spyre.serving import Engine
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig, refuse_unservable
from spec.spyre.records import Step
from spec.spyre.variants import Reading

ENGINE_CONFIG = {"reading": (Reading.TEXT,)}  # what it can do, of keys of which that is not all


def sampled_alone(plan: Plan) -> Tensor:
    """What each request that samples in the step samples next if it is served alone."""
    match plan:
        case PrefillPlan(chunk=chunk, request=one) if chunk.is_last:
            return np.array([one.request.output_token(one.prefill_len - one.request.prompt_len)])
        case DecodePlan(rows=rows):
            pairs = zip(rows.members, rows.generated().tolist(), strict=True)
            return np.array([one.request.output_token(count) for one, count in pairs], np.int64)
        case PrefillPlan() | IdlePlan():
            return NO_TOKENS


class SpecifiedEngine(Engine):
    """The engine without a device: each request samples what it samples when served alone."""

    def __init__(self, config: SpyreConfig) -> None:
        self.scheduler = Scheduler(config)

    def _computed(self, plan: Plan) -> Tensor:
        return sampled_alone(plan)


@define
class EngineScheduler:
    """Implements `Scheduler`: the engine, observed, for requests that are given beforehand."""

    engine: Engine
    requests: Iterable[Request]
    _by_id: dict[str, Request] = field(init=False)
    _observer: StepObserver = field(init=False)
    _aborted: list[str] = field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self._by_id = {request.id: request for request in self.requests}
        self._observer = StepObserver(self.engine.scheduler)

    def arrive(self, request_id: str) -> None:
        """The request is handed in between two steps."""
        self.engine.add(self._by_id[request_id])

    def abort(self, request_id: str) -> None:
        """The client goes away between two steps; nothing happens if the request has left."""
        if self.engine.abort(request_id):
            self._aborted.append(request_id)

    def step(self, index: int, action: Action) -> Step:
        """One scheduler step.

        Raises:
            ConstraintError: the device refuses the step.
            RuntimeError: the device failed; here it does not.
        """
        self._observer.begin()
        result = self.engine.step(action.ends)
        if result.outcome is None:
            raise RuntimeError(f"the device failed: {result.failure}")
        aborted = tuple(self._aborted)
        self._aborted.clear()
        outcome, time, ends = result.outcome, action.time, action.ends
        return self._observer.end(result.plan, outcome, index, time, ends, aborted)


def engine(case: Case) -> EngineScheduler:
    """The engine on the simulated device."""
    return on_device(SpyreDevice(case.config), case)


def on_device(device: Device, case: Case) -> EngineScheduler:
    """The engine on this device."""
    return EngineScheduler(Engine(case.config, device), case.requests)


def without_device(case: Case) -> EngineScheduler:
    """The engine, where the device's part is what the specification says of the tokens."""
    return EngineScheduler(SpecifiedEngine(case.config), case.requests)


def engine_under_test(case: Case) -> EngineScheduler:
    """The engine on a device that any admission can be compared on.

    The text's volume rule admits batches that exceed the limit: with such a rule the device takes
    any volume.

    Raises:
        WorkloadError: a request that could never be served.
    """
    config: SpyreConfig = case.config
    for request in case.requests:
        refuse_unservable(request, config)
    limit = config.max_batch_tkv_limit
    if not config.variant.keeps_limit:
        limit = config.max_num_seqs * (config.max_model_len + config.block_size)
    return on_device(SpyreDevice(evolve(config, max_batch_tkv_limit=limit)), case)
