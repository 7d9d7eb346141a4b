"""The configuration of Spyre: defaults, allowed values, and errors with their place."""

from typing import Any

import pytest
from attrs import evolve

from spec.core.errors import ConfigError, InputError, WorkloadError
from spec.spyre.config import SpyreConfig, released_2_6_3
from spec.spyre.variants import ADMISSIONS, Admission, Queue, Reading


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
