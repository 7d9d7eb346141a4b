"""The configuration: defaults, what a file may say, and every refusal in its words."""

from typing import Any

import pytest

from spec.core.errors import ConfigError, InputError, WorkloadError
from spec.spyre.config import SpyreConfig, released_2_6_3
from spec.spyre.variants import ADMISSIONS, Admission, Queue


def refusal(values: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as refused:
        SpyreConfig.from_mapping(values)
    return str(refused.value)


# --- defaults and variants ------------------------------------------------------------------------


def test_defaults_are_the_sizes_of_the_plugin() -> None:
    assert SpyreConfig().as_mapping() == {
        "policy": "spyre",
        "block_size": 64,
        "chunk_size": 512,
        "max_model_len": 32_768,
        "max_num_seqs": 32,
        "max_batch_tkv_limit": 131_072,
        "interleave": True,
        "prefix_caching": True,
        "admission": "exact",
        "queue": "fcfs",
        "reservation": True,
        "pausing": False,
        "long_output_first": False,
        "prefill_time": 8.0,
        "decode_time": 1.0,
    }


def test_configuration_comes_back_from_its_mapping() -> None:
    config = SpyreConfig(block_size=4, chunk_size=12, num_blocks=9, admission=Admission.SHIPPED)

    assert SpyreConfig.from_mapping(config.as_mapping()) == config


def test_mapping_may_name_variants_by_their_values_and_times_as_whole_numbers() -> None:
    config = SpyreConfig.from_mapping(
        {"admission": "documented", "queue": "overtaking", "prefill_time": 5}
    )

    assert config == SpyreConfig(
        admission=Admission.DOCUMENTED, queue=Queue.OVERTAKING, prefill_time=5.0
    )


def test_pool_is_large_enough_for_every_slot_unless_it_is_given() -> None:
    assert (
        SpyreConfig(block_size=64, max_model_len=130, chunk_size=64, max_num_seqs=3).pool_blocks
        == 9
    )
    assert SpyreConfig(num_blocks=7).pool_blocks == 7


def test_chunk_holds_whole_blocks() -> None:
    assert SpyreConfig(block_size=64, chunk_size=192).blocks_per_chunk == 3


def test_requests_may_be_paused_with_pausing_and_under_the_shipped_rule() -> None:
    assert SpyreConfig(pausing=True).may_pause
    assert SpyreConfig(admission=Admission.SHIPPED).may_pause
    assert not SpyreConfig().may_pause
    assert not SpyreConfig(admission=Admission.DOCUMENTED).may_pause


def test_released_version_pauses_overtakes_reserves_and_admits_as_shipped() -> None:
    config = released_2_6_3(max_num_seqs=4)

    assert (config.admission, config.queue) == (Admission.SHIPPED, Queue.OVERTAKING)
    assert (config.reservation, config.pausing, config.max_num_seqs) == (True, True, 4)
    assert not released_2_6_3(pausing=False).pausing


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"policy": "vllm-v0"}, "policy: found 'vllm-v0'; allowed: spyre"),
        ({"block_size": 0}, "block_size: found 0; allowed: 1 or more"),
        ({"chunk_size": 0}, "chunk_size: found 0; allowed: 1 or more"),
        ({"max_model_len": -1}, "max_model_len: found -1; allowed: 1 or more"),
        ({"max_num_seqs": 0}, "max_num_seqs: found 0; allowed: 1 or more"),
        ({"max_batch_tkv_limit": 0}, "max_batch_tkv_limit: found 0; allowed: 1 or more"),
        ({"num_blocks": 0}, "num_blocks: found 0; allowed: 1 or more"),
        ({"prefill_time": -0.5}, "prefill_time: found -0.5; allowed: 0 or more"),
        ({"decode_time": -1}, "decode_time: found -1; allowed: 0 or more"),
        ({"decode_time": float("nan")}, "decode_time: found nan; allowed: 0 or more"),
        (
            {"chunk_size": 100},
            "chunk_size: found 100; allowed: a multiple of block_size (64)",
        ),
        (
            {"reservation": False, "pausing": True},
            "reservation: found False; allowed: true, where requests may be paused "
            "(pausing, or admission = shipped)",
        ),
        (
            {"reservation": False, "admission": "shipped"},
            "reservation: found False; allowed: true, where requests may be paused "
            "(pausing, or admission = shipped)",
        ),
    ],
)
def test_value_outside_its_range_is_refused(values: dict[str, Any], message: str) -> None:
    assert refusal(values) == message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"policy": 1}, "policy: found 1; allowed: a text"),
        ({"block_size": 64.0}, "block_size: found 64.0; allowed: a whole number"),
        ({"block_size": True}, "block_size: found True; allowed: a whole number"),
        ({"num_blocks": "9"}, "num_blocks: found '9'; allowed: a whole number"),
        ({"interleave": 1}, "interleave: found 1; allowed: true or false"),
        ({"decode_time": "1"}, "decode_time: found '1'; allowed: a number"),
        ({"decode_time": True}, "decode_time: found True; allowed: a number"),
        (
            {"admission": "safe"},
            "admission: found 'safe'; allowed: exact, documented, shipped",
        ),
        ({"queue": 3}, "queue: found 3; allowed: fcfs, overtaking"),
    ],
)
def test_value_of_the_wrong_type_is_refused(values: dict[str, Any], message: str) -> None:
    assert refusal(values) == message


def test_unknown_key_is_refused_with_all_that_there_are() -> None:
    assert refusal({"blocksize": 64}) == (
        "blocksize: found 64; allowed: a key out of policy, block_size, chunk_size, "
        "max_model_len, max_num_seqs, max_batch_tkv_limit, num_blocks, interleave, "
        "prefix_caching, admission, queue, reservation, pausing, long_output_first, "
        "prefill_time, decode_time"
    )


def test_range_holds_however_the_configuration_is_made() -> None:
    with pytest.raises(ConfigError, match="block_size: found 0; allowed: 1 or more"):
        SpyreConfig(block_size=0)


# --- where an error was found ---------------------------------------------------------------------


def test_error_names_the_file_and_the_line_once_it_is_known() -> None:
    error = WorkloadError("max_tokens", 0, "1 or more tokens")

    assert str(error) == "max_tokens: found 0; allowed: 1 or more tokens"
    assert str(error.at("w.jsonl")) == f"w.jsonl: {error}"
    assert str(error.at("w.jsonl", 3)) == f"w.jsonl, line 3: {error}"


def test_error_keeps_the_first_place_that_it_was_given_and_its_kind() -> None:
    error = WorkloadError("max_tokens", 0, "1 or more tokens").at("w.jsonl", 3)

    assert error.at("other") is error
    assert isinstance(error, WorkloadError)
    assert isinstance(error, InputError)


def test_an_admission_that_is_only_half_added_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    table: Any = ADMISSIONS
    monkeypatch.delitem(table, Admission.SHIPPED)

    with pytest.raises(ConfigError, match="admission: found 'shipped'; allowed: exact, documented"):
        SpyreConfig(admission=Admission.SHIPPED)
