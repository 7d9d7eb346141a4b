"""Common properties of the configurations of all schedulers."""

import re
from typing import Any

import pytest
from attrs import evolve

from spec.core.configuration import PolicyConfig
from spec.core.errors import ConfigError
from spec.nano_vllm.config import HitCheck, NanoVllmConfig, documented, repaired
from spec.spyre.config import SpyreConfig
from spec.spyre.variants import Admission
from spec.vllm_v1.config import Connector, Scheduling, VllmV1Config

ALL: tuple[type[PolicyConfig], ...] = (SpyreConfig, NanoVllmConfig, VllmV1Config)

each_policy = pytest.mark.parametrize("config", ALL, ids=lambda config: config.__name__)


@each_policy
@pytest.mark.parametrize(
    ("values", "allowed"),
    [
        ({"policy": "fifo"}, "its own name"),
        ({"block_size": 64.0}, "a whole number"),
        ({"decode_time": "1"}, "a number"),
        ({"prefill_time": -1}, "0 or more"),
    ],
)
def test_wrong_value_is_refused_by_the_class_itself(
    config: type[PolicyConfig], values: dict[str, Any], allowed: str
) -> None:
    allowed = config.name_of_policy() if allowed == "its own name" else allowed

    with pytest.raises(ConfigError, match=refusal(values, allowed)):
        config(**values)


KEYS_OF_SPYRE = (
    "policy, block_size, chunk_size, max_model_len, keep_model_len, max_num_seqs, "
    "max_batch_tkv_limit, num_blocks, interleave, prefix_caching, admission, queue, max_overtakes, "
    "reservation, pausing, long_output_first, oversized, reading, prefill_time, decode_time"
)
NO_PAUSING = "true, where requests may be paused (pausing, or admission = shipped)"
WRONG: dict[type[PolicyConfig], dict[str, list[dict[str, Any]]]] = {  # by what is allowed
    SpyreConfig: {
        "spyre": [{"policy": "vllm-v0"}],
        "1 or more": [
            {"block_size": 0},
            {"chunk_size": 0},
            {"max_model_len": -1},
            {"max_num_seqs": 0},
            {"max_batch_tkv_limit": 0},
            {"num_blocks": 0},
        ],
        "0 or more": [{"prefill_time": -0.5}, {"decode_time": -1}, {"decode_time": float("nan")}],
        "a multiple of block_size (64)": [{"chunk_size": 100}],
        "a multiple of block_size (4), one token more, or at most a block (keep_model_len): left"
        " padding takes a tkv to the end of a block": [
            {"max_model_len": 7, "block_size": 4, "chunk_size": 4, "keep_model_len": True},
            {"max_model_len": 6, "block_size": 4, "chunk_size": 4, "keep_model_len": True},
        ],
        NO_PAUSING: [
            {"reservation": False, "pausing": True},
            {"reservation": False, "admission": "shipped"},
        ],
        "a text": [{"policy": 1}],
        "a whole number": [{"block_size": 64.0}, {"block_size": True}, {"num_blocks": "9"}],
        "true or false": [{"interleave": 1}],
        "a number": [{"decode_time": "1"}, {"decode_time": True}],
        ", ".join(Admission): [{"admission": "safe"}],
        "fcfs, overtaking, shortest, aligned": [{"queue": 3}],
        f"a key out of {KEYS_OF_SPYRE}": [{"blocksize": 64}],
    },
    NanoVllmConfig: {
        "nano-vllm": [{"policy": "spyre"}],
        "2 or more": [{"block_size": 1}],
        "1 or more": [{"num_blocks": 0}],
        "nothing, tokens, hash": [{"hit_check": "name"}],
        "a whole number": [{"max_num_seqs": "4"}],
        "at least max_model_len (4096)": [{"max_num_batched_tokens": 100}],
    },
    VllmV1Config: {
        "0 or more": [{"long_prefill_token_threshold": -1}, {"accepted_drafts": -1}],
        "fcfs, priority": [{"scheduling": "sjf"}],
        "vllm-v1": [{"policy": "spyre"}],
    },
}


def refusal(values: dict[str, Any], allowed: str) -> str:
    """A pattern of the whole message, which names the first of the values."""
    key, found = next(iter(values.items()))
    return f"^{re.escape(f'{key}: found {found!r}; allowed: {allowed}')}$"


@pytest.mark.parametrize(
    ("config", "values", "allowed"),
    [
        pytest.param(config, values, allowed, id=f"{config.__name__}-{values}")
        for config, wrong in WRONG.items()
        for allowed, rows in wrong.items()
        for values in rows
    ],
)
def test_wrong_value_in_a_mapping_is_refused(
    config: type[PolicyConfig], values: dict[str, Any], allowed: str
) -> None:
    with pytest.raises(ConfigError, match=refusal(values, allowed)):
        config.from_mapping(values)


@pytest.mark.parametrize(
    "config",
    [
        SpyreConfig(block_size=4, chunk_size=12, num_blocks=9, admission=Admission.SHIPPED),
        *(NanoVllmConfig(num_blocks=7), documented(), repaired()),
        VllmV1Config(scheduling=Scheduling.PRIORITY, connector=Connector.ASYNC),
    ],
)
def test_configuration_comes_back_from_its_mapping(config: PolicyConfig) -> None:
    assert type(config).from_mapping(config.as_mapping()) == config


def test_the_name_of_a_variant_is_accepted_as_the_variant() -> None:
    by_name: dict[str, Any] = {"admission": "shipped"}

    assert SpyreConfig(**by_name) == SpyreConfig(admission=Admission.SHIPPED)
    assert SpyreConfig(**by_name).may_pause
    assert evolve(SpyreConfig(), **by_name).may_pause
    named: dict[str, Any] = {"hit_check": "hash"}
    assert NanoVllmConfig(**named).hit_check is HitCheck.HASH
    connected: dict[str, Any] = {"connector": "async"}
    assert VllmV1Config(**connected).connector is Connector.ASYNC


@each_policy
def test_pool_is_large_enough_for_every_slot_unless_it_is_given(config: type[PolicyConfig]) -> None:
    whole = config(max_model_len=1025, max_num_seqs=3)  # type: ignore[call-arg]

    assert whole.pool_blocks == 3 * (1024 // whole.block_size + 1)
    assert evolve(whole, num_blocks=7).pool_blocks == 7
