"""Spyre: the reference, and the engine on the simulated device."""

from collections.abc import Sequence

from checks.fuzz.reference import reference_target
from checks.harness.targets import EngineTarget
from checks.policies.policy import Policy
from checks.policies.spyre.codec import CODEC
from checks.policies.spyre.figures import VolumeFigures
from checks.policies.spyre.instances import DEFAULT
from checks.policies.spyre.model import spyre_model
from checks.policies.spyre.settings import VARIABLES, other_size
from checks.policies.spyre.work import spyre_work
from engine.spyre.device import SpyreDevice
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig, refuse_unservable
from spec.spyre.records import Context, Step, context_of
from spec.spyre.rules import SPYRE as RULES
from spec.spyre.state import State


def _engine(config: SpyreConfig, requests: Sequence[Request]) -> EngineTarget:
    return EngineTarget.on(SpyreDevice(config), config, requests)


SPYRE: Policy[SpyreConfig, Context, State, Step] = Policy(
    config=SpyreConfig,
    registry=RULES,
    context_of=context_of,
    refuse_unservable=refuse_unservable,
    reference=reference_target,
    engine=_engine,
    without_device=EngineTarget.without_device,
    codec=CODEC,
    work=spyre_work,
    judged_apart=("BLK-", "LIF-", "SPY-DEC-", "SPY-PFX-", "SPY-RES-", "SPY-TKV-", "SPY-VOL-"),
    step=Step,
    model=spyre_model,
    instances=DEFAULT,
    figures=VolumeFigures(),
    volume_limit=lambda config: config.max_batch_tkv_limit,
    variables=VARIABLES,
    implied=other_size,
)
