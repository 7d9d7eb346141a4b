"""The configuration of Spyre: defaults, what a file may say, and errors with their place."""

from typing import Any

import pytest
from attrs import evolve

from spec.core.errors import ConfigError, InputError, WorkloadError
from spec.spyre.config import SpyreConfig, released_2_6_3
from spec.spyre.variants import ADMISSIONS, Admission, Queue, Reading


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
        "max_overtakes": 8_192,
        "reservation": True,
        "pausing": False,
        "long_output_first": False,
        "reading": "text",
        "prefill_time": 8.0,
        "decode_time": 1.0,
    }


def test_mapping_may_name_variants_by_their_values_and_times_as_whole_numbers() -> None:
    config = SpyreConfig.from_mapping(
        {"admission": "documented", "queue": "overtaking", "prefill_time": 5}
    )

    assert config == SpyreConfig(
        admission=Admission.DOCUMENTED, queue=Queue.OVERTAKING, prefill_time=5.0
    )


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
    assert config.reading is Reading.RELEASED
    assert not released_2_6_3(pausing=False).pausing


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


@pytest.mark.parametrize(
    ("slots", "length", "text", "released"),
    [
        pytest.param(4, 512, 32, 35, id="the next multiple of the slots, less the padding block"),
        pytest.param(1, 512, 8, 8, id="one slot"),
        pytest.param(1, 100, 2, 1, id="whole blocks only"),
        pytest.param(3, 100, 6, 5, id="whole blocks of three slots"),
    ],
)
def test_the_release_sizes_a_pool_for_which_no_number_is_given_in_its_own_way(
    slots: int, length: int, text: int, released: int
) -> None:
    config = SpyreConfig(block_size=64, chunk_size=64, max_model_len=length, max_num_seqs=slots)

    assert config.pool_blocks == text
    assert evolve(config, reading=Reading.RELEASED).pool_blocks == released
    assert evolve(config, reading=Reading.RELEASED, num_blocks=7).pool_blocks == 7


def test_the_release_is_all_of_its_keys_but_for_those_that_are_given() -> None:
    config = released_2_6_3(pausing=False, max_num_seqs=3)

    assert (config.admission, config.queue) == (Admission.SHIPPED, Queue.OVERTAKING)
    assert (config.reservation, config.pausing, config.max_num_seqs) == (True, False, 3)
    assert released_2_6_3().pausing
    assert config.reading is Reading.RELEASED
