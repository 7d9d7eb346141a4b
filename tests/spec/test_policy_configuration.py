"""What the configurations of all schedulers have in common."""

from typing import Any

import pytest
from attrs import evolve

from spec.core.configuration import PolicyConfig
from spec.core.errors import ConfigError
from spec.nano_vllm.config import HitCheck, NanoVllmConfig
from spec.spyre.config import SpyreConfig
from spec.spyre.variants import Admission
from spec.vllm_v1.config import Connector, VllmV1Config

ALL: tuple[type[PolicyConfig], ...] = (SpyreConfig, NanoVllmConfig, VllmV1Config)

each_policy = pytest.mark.parametrize("config", ALL, ids=lambda config: config.__name__)


def refusal(config: type[PolicyConfig], values: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as refused:
        config(**values)
    return str(refused.value)


def test_policies_are_told_apart_by_their_names() -> None:
    assert [config.name_of_policy() for config in ALL] == ["spyre", "nano-vllm", "vllm-v1"]


@each_policy
def test_name_of_another_policy_is_refused(config: type[PolicyConfig]) -> None:
    own = config.name_of_policy()

    assert refusal(config, {"policy": "fifo"}) == f"policy: found 'fifo'; allowed: {own}"


@each_policy
def test_value_of_a_wrong_type_is_refused_by_the_class_itself(config: type[PolicyConfig]) -> None:
    assert refusal(config, {"block_size": 64.0}) == (
        "block_size: found 64.0; allowed: a whole number"
    )
    assert refusal(config, {"decode_time": "1"}) == "decode_time: found '1'; allowed: a number"
    assert refusal(config, {"prefill_time": -1}) == "prefill_time: found -1; allowed: 0 or more"


def test_name_of_a_variant_is_the_variant_wherever_it_comes_from() -> None:
    by_name: dict[str, Any] = {"admission": "shipped"}

    assert SpyreConfig(**by_name) == SpyreConfig(admission=Admission.SHIPPED)
    assert SpyreConfig(**by_name).may_pause
    assert evolve(SpyreConfig(), **by_name).may_pause
    named: dict[str, Any] = {"hit_check": "hash"}
    assert NanoVllmConfig(**named).hit_check is HitCheck.HASH
    connected: dict[str, Any] = {"connector": "async"}
    assert VllmV1Config(**connected).connector is Connector.ASYNC


def test_refusal_shows_a_variant_by_its_name() -> None:
    error = ConfigError("admission", Admission.SHIPPED, "exact")

    assert str(error) == "admission: found 'shipped'; allowed: exact"


@each_policy
def test_pool_is_large_enough_for_every_slot_unless_it_is_given(config: type[PolicyConfig]) -> None:
    whole = config(max_model_len=1025, max_num_seqs=3)  # type: ignore[call-arg]

    assert whole.pool_blocks == 3 * (1024 // whole.block_size + 1)
    assert evolve(whole, num_blocks=7).pool_blocks == 7
