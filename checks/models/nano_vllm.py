"""The nano-vLLM machine with its environment, as a state graph to explore."""

from typing import TypeAlias

from checks.models.environment import EnvironmentModel
from checks.models.instance import Instance
from checks.models.properties import Properties, properties_of_rules
from reference.nano_vllm.machine import NanoVllmMachine
from spec.policies.nano_vllm import NanoVllmConfig, NanoVllmContext
from spec.records import Step
from spec.rules.nano_vllm import applicable
from spec.state import State

NanoVllmInstance: TypeAlias = Instance[NanoVllmConfig]


class NanoVllmModel(EnvironmentModel[NanoVllmConfig]):
    """The reachable states of an instance."""

    def __init__(self, instance: NanoVllmInstance) -> None:
        """The model of the reference machine.

        Raises:
            WorkloadError: a request of the instance could never be served, and such are refused.
        """
        machine = NanoVllmMachine.of(instance.config, instance.requests)
        super().__init__(instance, machine)
        self.ctx: NanoVllmContext = machine.ctx


def properties_of(model: NanoVllmModel) -> Properties[State]:
    """The rules that apply to the instance."""
    return properties_of_rules(applicable(model.instance.config), model.ctx, Step)
