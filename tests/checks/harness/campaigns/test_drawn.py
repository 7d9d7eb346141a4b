"""The configurations in which a release was compared, and those that lie outside."""

from typing import Any

import pytest
from attrs import evolve

from checks.harness.campaigns.drawn import decisive_keys, held_to, summarised
from spec.vllm_v1.config import Connector, VllmV1Config

CONFIG = VllmV1Config(block_size=4, num_blocks=20, max_model_len=64, max_num_batched_tokens=32)
DRAWN = {key: [value] for key, value in decisive_keys(CONFIG).items()}


def release(drawn: dict[str, list[Any]] | None, **fields: Any) -> dict[str, Any]:
    entry = {"rules": ["V1-BUD-1"], "episodes": 9, "steps": 100, "known": {}} | fields
    return entry if drawn is None else entry | {"drawn": drawn}


def test_of_numbers_the_least_and_the_most_are_recorded_of_variants_all() -> None:
    assert summarised({3, 16, 4}) == [3, 16]
    assert summarised({5}) == [5]
    assert summarised({False, True}) == [False, True]
    assert summarised({"priority", "fcfs"}) == ["fcfs", "priority"]
    assert summarised({None, 2, 7}) == [None, 2, 7]


def test_times_of_the_clock_are_no_matter_of_decisions() -> None:
    keys = decisive_keys(CONFIG)
    assert "prefill_time" not in keys
    assert "policy" not in keys
    assert keys["scheduling"] == "fcfs"
    assert decisive_keys(VllmV1Config(max_model_len=64))["max_num_batched_tokens"] == 2_048


def outside(**drawn: list[Any]) -> dict[str, Any]:
    (held,) = held_to(CONFIG, {"vLLM": release({**DRAWN, **drawn})})
    assert held.outside is not None
    assert held.is_within == (not held.outside)
    return dict(held.outside)


def test_a_configuration_lies_inside_if_each_of_its_values_does() -> None:
    assert outside() == {}
    assert outside(block_size=[1, 16]) == {}
    assert outside(block_size=[8, 16]) == {"block_size": (4, [8, 16])}
    assert outside(chunked_prefill=[False]) == {"chunked_prefill": (True, [False])}
    assert outside(accepted_drafts=[0, 3]) == {"accepted_drafts": (None, [0, 3])}


def test_a_key_that_is_not_on_record_was_at_its_default() -> None:
    drawn = {key: values for key, values in DRAWN.items() if key != "connector"}
    (held,) = held_to(CONFIG, {"vLLM": release(drawn)})
    (beyond,) = held_to(evolve(CONFIG, connector=Connector.SYNC), {"vLLM": release(drawn)})
    assert (held.outside, beyond.outside) == ({}, {"connector": ("sync", ("none",))})


def test_the_nearest_release_of_the_policy_comes_first() -> None:
    record = {
        "unknown": release(None),
        "two keys": release({**DRAWN, "block_size": [8], "max_num_seqs": [1, 2]}),
        "one key": release({**DRAWN, "block_size": [8]}, known={"VLM-1": 3, "VLM-2": 0}),
        "another policy": release(DRAWN, rules=["SPY-TKV-1"]),
    }
    nearest, *others = held_to(CONFIG, record)
    assert (nearest.release, nearest.known) == ("one key", ("VLM-1",))
    assert [held.release for held in others] == ["two keys", "unknown"]
    assert others[-1].outside is None
    assert not others[-1].is_within


@pytest.mark.parametrize("value", [True, "16"])
def test_values_are_compared_as_what_they_are(value: Any) -> None:
    assert outside(block_size=[value]) == {"block_size": (4, [value])}
