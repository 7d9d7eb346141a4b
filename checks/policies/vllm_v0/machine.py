"""The reference of vLLM V0, and its instances."""

from pathlib import Path

from checks.explore.instance import read_instances
from checks.explore.policy import Machine
from checks.policies.vllm_v0.model import vllm_v0_model
from reference.vllm_v0.machine import VllmV0Machine
from spec.vllm_v0.config import VllmV0Config
from spec.vllm_v0.records import Context, State

MACHINE: Machine[VllmV0Config, Context, State] = Machine(
    of=VllmV0Machine.of,
    model=vllm_v0_model,
    instances=read_instances(Path(__file__).with_name("instances.toml"), plain=VllmV0Config),
    worlds=read_instances(Path(__file__).with_name("worlds.toml"), plain=VllmV0Config),
)
