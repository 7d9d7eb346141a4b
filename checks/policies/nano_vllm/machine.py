"""The reference of nano-vLLM, and its instances."""

from pathlib import Path

from checks.explore.instance import read_instances
from checks.explore.policy import Machine
from reference.nano_vllm.machine import NanoVllmMachine
from spec.nano_vllm.config import NanoVllmConfig, documented, newest, repaired
from spec.nano_vllm.records import Context, State

MACHINE: Machine[NanoVllmConfig, Context, State] = Machine(
    of=NanoVllmMachine.of,
    instances=read_instances(
        Path(__file__).with_name("instances.toml"),
        plain=NanoVllmConfig,
        documented=documented,
        repaired=repaired,
        newest=newest,
    ),
    worlds=read_instances(
        Path(__file__).with_name("worlds.toml"), plain=NanoVllmConfig, newest=newest
    ),
)
