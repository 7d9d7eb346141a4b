"""The engine as a target, on the simulated device; the reference is one in `checks.fuzz`."""

from collections.abc import Collection, Iterable

from attrs import define, evolve, field

from checks.fuzz.reference import reference_target
from checks.policies.spyre.engine_model import sampled_alone
from engine.core.tensors import Tensor
from engine.spyre.device import Device, SpyreDevice
from engine.spyre.observing import StepObserver
from engine.spyre.scheduler import Plan, Scheduler
from engine.spyre.serving import Engine
from spec.core.requests import Request
from spec.spyre.config import Admission, SpyreConfig, refuse_unservable
from spec.spyre.records import Step

__all__ = ["EngineTarget", "SpecifiedEngine", "engine_target", "reference_target"]


class SpecifiedEngine(Engine):
    """The engine without a device: each request samples what it samples when served alone."""

    def __init__(self, config: SpyreConfig) -> None:
        self.scheduler = Scheduler(config)

    def _computed(self, plan: Plan) -> Tensor:
        return sampled_alone(plan)


@define
class EngineTarget:
    """Implements `Target`: the engine, observed, for requests that it is told of beforehand."""

    engine: Engine
    _requests: dict[str, Request]
    _observer: StepObserver
    _aborted: list[str] = field(factory=list, init=False)

    @staticmethod
    def on(device: Device, config: SpyreConfig, requests: Iterable[Request]) -> "EngineTarget":
        """The engine with this device, nobody arrived."""
        return EngineTarget._of(Engine(config, device), requests)

    @staticmethod
    def without_device(config: SpyreConfig, requests: Iterable[Request]) -> "EngineTarget":
        """The engine, where the device's part is what the specification says of the tokens."""
        return EngineTarget._of(SpecifiedEngine(config), requests)

    @staticmethod
    def _of(engine: Engine, requests: Iterable[Request]) -> "EngineTarget":
        by_id = {request.id: request for request in requests}
        return EngineTarget(engine, by_id, StepObserver(engine.scheduler))

    def arrive(self, request_id: str) -> None:
        """The request is handed in between two steps."""
        self.engine.add(self._requests[request_id])

    def abort(self, request_id: str) -> None:
        """The client goes away between two steps; nothing happens if the request has left."""
        if self.engine.abort(request_id):
            self._aborted.append(request_id)

    def step(self, index: int, time: float, ends: Collection[str] | None = None) -> Step:
        """One scheduler step.

        Raises:
            ConstraintError: the device refuses the step.
            RuntimeError: the device failed; a target's device does not.
        """
        self._observer.begin()
        result = self.engine.step(ends)
        if result.outcome is None:
            raise RuntimeError(f"the device of a target failed: {result.failure}")
        aborted = tuple(self._aborted)
        self._aborted.clear()
        return self._observer.end(result.plan, result.outcome, index, time, ends, aborted)


def engine_target(config: SpyreConfig, requests: Iterable[Request]) -> EngineTarget:
    """The engine on the simulated device with these requests, nobody arrived.

    The text's volume rule admits batches that exceed the limit. So that they can be compared too,
    the device then takes any volume.

    Raises:
        WorkloadError: a request that could never be served.
    """
    listed = list(requests)
    for request in listed:
        refuse_unservable(request, config)
    limit = config.max_batch_tkv_limit
    if config.admission is Admission.DOCUMENTED:
        limit = config.max_num_seqs * (config.max_model_len + config.block_size)
    device = SpyreDevice(evolve(config, max_batch_tkv_limit=limit))
    return EngineTarget.on(device, config, listed)
