"""The settings of a run: its configuration and its cost model."""

from attrs import frozen

from engine.core.clock import CostModel
from spec.core.configuration import PolicyConfig


@frozen
class Settings:
    """A configuration, and the cost of its steps on the simulated clock, in this unit.

    `about_cost`: where estimated costs are from.
    """

    config: PolicyConfig
    cost: CostModel
    unit: str = "time unit"
    about_cost: str = ""
