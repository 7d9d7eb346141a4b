"""The instances that are explored by default: small in numbers, rich in behaviour."""

from pathlib import Path

from checks.explore.instance_file import read_instances
from spec.vllm_v1.config import VllmV1Config

DEFAULT = read_instances(Path(__file__).with_suffix(".toml"), plain=VllmV1Config)
