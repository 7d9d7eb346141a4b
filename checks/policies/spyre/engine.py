"""The engine serving one case, on the simulated device or with specified tokens."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from attrs import evolve

from checks.harness.case import Case
from checks.harness.own_engine import EngineScheduler, has_token_ids
from checks.harness.system import Action
from engine.core.tensors import NO_TOKENS, Tensor
from engine.spyre.decisions import DecisionObserver
from engine.spyre.device import Device, SpyreDevice
from engine.spyre.observing import StepObserver
from engine.spyre.scheduler import DecodePlan, IdlePlan, Plan, PrefillPlan, Scheduler
from engine.spyre.serving import Engine
from spec.core.records import Event
from spec.core.requests import Oversized
from spec.spyre.config import SpyreConfig, refuse_unservable
from spec.spyre.records import Step


def sampled_alone(plan: Plan) -> Tensor:
    """The next token of each request that samples in the step, as if it were served alone."""
    match plan:
        case PrefillPlan(chunk=chunk, request=row) if chunk.is_last:
            return np.array([row.request.output_token(row.prefill_len - row.request.prompt_len)])
        case DecodePlan(rows=rows):
            pairs = zip(rows.members, rows.generated().tolist(), strict=True)
            return np.array([row.request.output_token(count) for row, count in pairs], np.int64)
        case PrefillPlan() | IdlePlan():
            return NO_TOKENS


class SpecifiedEngine(Engine):
    """The engine without a device: each request samples the tokens of a run alone."""

    def __init__(self, config: SpyreConfig) -> None:
        self.scheduler = Scheduler(config)

    def _computed(self, plan: Plan) -> Tensor:
        return sampled_alone(plan)


class SimulatedEngine(Engine):
    """The engine without a device, for requests of named streams: each samples token 0."""

    def __init__(self, config: SpyreConfig) -> None:
        self.scheduler = Scheduler(config)
        self.scheduler.state.name_by_streams()

    def _computed(self, plan: Plan) -> Tensor:
        return np.zeros(plan.samples, np.int64)


class SpyreEngine(EngineScheduler[Engine, Any]):
    """The engine, told between two steps whose grammars are ready and whose images are encoded."""

    def step(self, index: int, action: Action) -> Any:
        """One scheduler step; by default all grammars are ready before it, all images encoded.

        Raises:
            ConstraintError: the device refuses the step.
            RuntimeError: the device failed; the default device never does.
        """
        ready = [*self._made_ready(action)]
        step = super().step(index, action)
        if ready and isinstance(step, Step):
            return evolve(step, events=(*ready, *step.events))
        return step

    def _made_ready(self, action: Action) -> Iterator[Event]:
        """Make grammars and images ready; the events that say so."""
        engine, awaited = self.engine, self.engine.scheduler.state.awaited
        compiled, encoded = sorted(awaited.compiling), sorted(awaited.encoding)
        if action.accepted is not None:
            compiled, encoded = [*action.compiled], [*action.encoded]
        yield from (Event("compiled", id_, "") for id_ in compiled if engine.compiled(id_))
        yield from (Event("encoded", id_, "") for id_ in encoded if engine.encoded(id_))
        failed = (id_ for id_ in action.unencodable if engine.unencodable(id_))
        yield from (Event("unencodable", id_, "") for id_ in failed)


def new_device(config: SpyreConfig) -> SpyreDevice:
    """A device with the sizes of the configuration."""
    return SpyreDevice(config)


def engine(case: Case) -> SpyreEngine:
    """The engine on the simulated device."""
    return on_device(new_device(case.config), case)


def on_device(device: Device, case: Case) -> SpyreEngine:
    """The engine on this device."""
    return _observed(Engine(case.config, device), case)


def without_device(case: Case) -> SpyreEngine:
    """The engine without a device, with the tokens of the specification."""
    return _observed(SpecifiedEngine(case.config), case)


def simulated(case: Case, records: bool = False) -> SpyreEngine:
    """The engine without a device; `records`: its steps are records, else decisions."""
    kind = SpecifiedEngine if has_token_ids(case.requests) else SimulatedEngine
    serving = kind(case.config)
    observer = (StepObserver if records else DecisionObserver)(serving.scheduler)
    return SpyreEngine(serving, observer, case.requests)


def _observed(serving: Engine, case: Case) -> SpyreEngine:
    return SpyreEngine(serving, StepObserver(serving.scheduler), case.requests)


def engine_under_test(
    case: Case, device: Callable[[SpyreConfig], Device] = new_device
) -> SpyreEngine:
    """The engine on such a device, with a volume limit that suits every admission rule.

    The text's volume rule admits batches over the limit: under such a rule the device accepts any
    volume. Where prompts over the limit are queued, it accepts their prefill.

    Raises:
        WorkloadError: a request could never be served.
    """
    config: SpyreConfig = case.config
    for request in case.requests:
        refuse_unservable(request, config)
    limit = config.max_batch_tkv_limit
    if not config.variant.keeps_limit:
        limit = config.max_num_seqs * (config.max_model_len + config.block_size)
    elif config.oversized is Oversized.QUEUED:
        limit = max([limit, *(request.prompt_len for request in case.requests)])
    return on_device(device(evolve(config, max_batch_tkv_limit=limit)), case)
