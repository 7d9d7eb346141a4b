"""The engine serving one case, on the paged device or with specified tokens."""

from collections.abc import Callable
from typing import Any

import numpy as np

from checks.harness.case import Case
from checks.harness.own_engine import EngineScheduler, has_token_ids
from engine.core.tensors import Tensor
from engine.nano_vllm.decisions import DecisionObserver
from engine.nano_vllm.model_input import paged_shape
from engine.nano_vllm.observing import StepObserver
from engine.nano_vllm.plan import Plan, PrefillPlan
from engine.nano_vllm.scheduler import Scheduler
from engine.nano_vllm.serving import Device, Engine
from engine.paged.device import PagedDevice
from spec.nano_vllm.config import FullHit, HitCheck, NanoVllmConfig, NewBlock
from spec.nano_vllm.records import Step


def sampled_alone(scheduler: Scheduler, plan: Plan) -> Tensor:
    """The next token of each request that samples in the step, as if it were served alone."""
    if isinstance(plan, PrefillPlan):
        rows = [admission.request for admission in plan.admissions]
        lengths = [row.prefill_len for row in rows]
    else:
        rows, running = [*plan.batch.rows], scheduler.state.running
        lengths = [running.computed(row) + 1 for row in rows]
    pairs = zip(rows, lengths, strict=True)
    sampled = [row.request.output_token(length - row.request.prompt_len) for row, length in pairs]
    return np.array(sampled, np.int64)


class SpecifiedEngine(Engine):
    """The engine without a device: each request samples the tokens of a run alone."""

    def __init__(self, config: NanoVllmConfig) -> None:
        self.scheduler = Scheduler(config)

    def _computed(self, plan: Plan) -> Tensor:
        return sampled_alone(self.scheduler, plan)


class SimulatedEngine(Engine):
    """The engine without a device, for requests of named streams: each samples token 0."""

    def __init__(self, config: NanoVllmConfig) -> None:
        self.scheduler = Scheduler(config)
        self.scheduler.state.name_by_streams()

    def _computed(self, plan: Plan) -> Tensor:
        return np.zeros(plan.samples, np.int64)


def new_device(config: NanoVllmConfig) -> PagedDevice:
    """A paged device with the sizes of the configuration."""
    return PagedDevice(paged_shape(config))


def engine(case: Case) -> EngineScheduler[Engine, Step]:
    """The engine on the paged device."""
    return on_device(new_device(case.config), case)


def on_device(device: Device, case: Case) -> EngineScheduler[Engine, Step]:
    """The engine on this device."""
    return _observed(Engine(case.config, device), case)


def without_device(case: Case) -> EngineScheduler[Engine, Step]:
    """The engine without a device, with the tokens of the specification."""
    return _observed(SpecifiedEngine(case.config), case)


def simulated(case: Case, records: bool = False) -> EngineScheduler[Engine, Any]:
    """The engine without a device; `records`: its steps are records, else decisions."""
    kind = SpecifiedEngine if has_token_ids(case.requests) else SimulatedEngine
    serving = kind(case.config)
    observer = (StepObserver if records else DecisionObserver)(serving.scheduler)
    return EngineScheduler(serving, observer, case.requests)


def _observed(serving: Engine, case: Case) -> EngineScheduler[Engine, Step]:
    return EngineScheduler(serving, StepObserver(serving.scheduler), case.requests)


def engine_under_test(
    case: Case, device: Callable[[NanoVllmConfig], Device] = new_device
) -> EngineScheduler[Engine, Step]:
    """The engine on such a device, if the device supports the configuration; else without one.

    In the release a hit may be false, and a prompt that is cached as a whole computes nothing.

    Raises:
        WorkloadError: a request could never be served.
    """
    config: NanoVllmConfig = case.config
    can_do = (
        config.hit_check is HitCheck.HASH
        and config.full_hit is FullHit.LAST_COMPUTED
        and config.new_block is NewBlock.AFTER_BOUNDARY
    )
    return on_device(device(config), case) if can_do else without_device(case)
