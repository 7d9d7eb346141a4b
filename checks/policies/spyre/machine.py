"""The reference of Spyre, its instances, and the compiled machine."""

from pathlib import Path

from checks.explore.instance import read_instances
from checks.explore.policy import Machine
from checks.policies.spyre.model import spyre_model
from checks.registry import imported_when_called
from reference.spyre.machine import SpyreMachine
from spec.spyre.config import SpyreConfig
from spec.spyre.records import Context
from spec.spyre.state import State

MACHINE: Machine[SpyreConfig, Context, State] = Machine(
    of=SpyreMachine.of,
    model=spyre_model,
    instances=read_instances(Path(__file__).with_name("instances.toml"), plain=SpyreConfig),
    large=read_instances(Path(__file__).with_name("large.toml"), plain=SpyreConfig),
    worlds=read_instances(Path(__file__).with_name("worlds.toml"), plain=SpyreConfig),
    thorough=read_instances(Path(__file__).with_name("thorough.toml"), plain=SpyreConfig),
    compiled=imported_when_called("policies.spyre.compiled.support", "compiled_maker"),
)
