"""The nano-vLLM machine with its environment, as a state graph to explore."""

from typing import TypeAlias

from checks.explore.environment import EnvironmentModel
from checks.explore.instance import Instance
from checks.explore.properties import Properties, properties_of_rules
from reference.nano_vllm.machine import NanoVllmMachine
from spec.nano_vllm.config import NanoVllmConfig
from spec.nano_vllm.records import Context, State, Step
from spec.nano_vllm.rules import applicable

NanoVllmInstance: TypeAlias = Instance[NanoVllmConfig]


class NanoVllmModel(EnvironmentModel[NanoVllmConfig, State]):
    """The reachable states of an instance."""

    def __init__(self, instance: NanoVllmInstance) -> None:
        """The model of the reference machine.

        Raises:
            WorkloadError: a request of the instance could never be served, and such are refused.
        """
        machine = NanoVllmMachine.of(instance.config, instance.requests)
        super().__init__(instance, machine)
        self.ctx: Context = machine.ctx


def properties_of(model: NanoVllmModel) -> Properties[State]:
    """The rules that apply to the instance."""
    return properties_of_rules(applicable(model.instance.config), model.ctx, Step)
