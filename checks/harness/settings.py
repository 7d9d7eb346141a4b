"""What a run is set to: the configuration, and what its steps cost."""

from attrs import frozen

from engine.core.clock import CostModel
from spec.core.configuration import PolicyConfig


@frozen
class Settings:
    """A configuration, and what its steps cost on the simulated clock."""

    config: PolicyConfig
    cost: CostModel
