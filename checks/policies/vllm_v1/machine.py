"""The reference of vLLM V1, and its instances."""

from pathlib import Path

from checks.explore.instance import read_instances
from checks.explore.policy import Machine
from checks.policies.vllm_v1.model import vllm_v1_model
from reference.vllm_v1.machine import VllmV1Machine
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import Context, State

MACHINE: Machine[VllmV1Config, Context, State] = Machine(
    of=VllmV1Machine.of,
    model=vllm_v1_model,
    instances=read_instances(Path(__file__).with_name("instances.toml"), plain=VllmV1Config),
    worlds=read_instances(Path(__file__).with_name("worlds.toml"), plain=VllmV1Config),
)
