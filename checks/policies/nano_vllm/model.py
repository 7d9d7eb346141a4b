"""The nano-vLLM machine with its environment, as a state graph to explore."""

from checks.explore.environment import MachineModel, model_of
from checks.explore.instance import Instance
from reference.nano_vllm.machine import NanoVllmMachine
from spec.nano_vllm.config import NanoVllmConfig
from spec.nano_vllm.records import Context, State


def nano_vllm_model(instance: Instance[NanoVllmConfig]) -> MachineModel[Context, State]:
    """The reachable states of an instance.

    Raises:
        WorkloadError: a request of the instance could never be served, and such are refused.
    """
    return model_of(instance, NanoVllmMachine.of(instance.config, instance.requests))
