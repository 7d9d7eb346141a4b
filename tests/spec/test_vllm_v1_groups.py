"""Groups of layers of vLLM V1: how they are named, and their formulas on small numbers."""

from typing import Any

import pytest

from spec.core.errors import ConfigError
from spec.core.requests import Prompt, Request
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.groups import (
    GroupKind,
    KvGroup,
    is_findable,
    last_state,
    most_blocks,
    parsed_groups,
    retired_places,
    state_aligned_end,
    unread_blocks,
)
from spec.vllm_v1.requests import blocks_alone


def test_a_text_names_groups_with_their_windows_and_blocks() -> None:
    assert parsed_groups("sliding 6, sliding 4/8, full", 4) == (
        KvGroup(1, GroupKind.SLIDING, 4, 6),
        KvGroup(2, GroupKind.SLIDING, 8, 4),
        KvGroup(3, GroupKind.FULL, 4, None),
    )
    assert parsed_groups("mamba", 4) == (KvGroup(1, GroupKind.MAMBA, 4, 2),)


@pytest.mark.parametrize(
    ("keys", "key", "allowed"),
    [
        ({"kv_groups": "slide 6"}, "kv_groups", "groups with commas"),
        ({"kv_groups": ""}, "kv_groups", "groups with commas"),
        ({"kv_groups": "sliding 1"}, "kv_groups", "windows of 2"),
        ({"kv_groups": "sliding 6/6"}, "kv_groups", "of windows alone"),
        ({"kv_groups": "sliding 6, full/8"}, "kv_groups", "of windows alone"),
        ({"kv_groups": "full"}, "kv_groups", "a group that is not like the first"),
        ({"kv_groups": "mamba, sliding 6/8"}, "kv_groups", "beside mamba"),
        ({"kv_groups": "mamba", "prefix_caching": False}, "prefix_caching", "true"),
        ({"kv_groups": "mamba", "chunked_prefill": False}, "chunked_prefill", "true"),
        ({"kv_groups": "mamba", "connector": "sync"}, "connector", "none, async"),
        ({"kv_groups": "sliding 6", "connector": "sync", "sends": True}, "sends", "false"),
        (
            {"kv_groups": "mamba", "num_speculative_tokens": 1},
            "num_speculative_tokens",
            "0 beside kv_groups with mamba",
        ),
        ({"kv_groups": "sliding 6", "release": "0.11.2"}, "release", "0.33.0, 0.28.0"),
        ({"kv_groups": "sliding 6", "pooling": True}, "pooling", "false"),
    ],
)
def test_what_is_not_modelled_is_refused(keys: dict[str, Any], key: str, allowed: str) -> None:
    with pytest.raises(ConfigError, match=allowed) as raised:
        VllmV1Config(block_size=4, **keys)

    assert raised.value.field == key


def test_hits_and_the_pool_count_the_blocks_of_all_groups() -> None:
    config = VllmV1Config(
        block_size=4, max_model_len=16, max_num_seqs=2, kv_groups="sliding 4/8, sliding 6"
    )

    assert config.hit_alignment == 8
    assert config.pool_blocks == 2 * (4 + 2 + 4)


def test_blocks_behind_the_window_are_read_no_more() -> None:
    # With 7 tokens computed and a window of 4 the next token reads tokens 4 to 7.
    assert [unread_blocks(7, 4, size) for size in (1, 2, 4, 8)] == [4, 2, 1, 0]
    assert unread_blocks(2, 4, 1) == 0
    assert [unread_blocks(computed, 2, 4) for computed in (4, 5, 8, 9)] == [0, 1, 1, 2]


def test_a_window_holds_its_tokens_those_of_a_step_and_one_block_more() -> None:
    assert most_blocks(4, 5, 64, 4) == 3
    assert most_blocks(4, 100, 16, 4) == 5


def test_a_request_alone_needs_what_it_may_hold_with_steps_in_flight() -> None:
    request = Request(id="a", prompt=Prompt.of_stream("a", 20), max_tokens=5)

    def blocks(**keys: Any) -> int:
        plain: dict[str, Any] = {"block_size": 2, "max_model_len": 64, "max_num_batched_tokens": 4}
        return blocks_alone(request, VllmV1Config(**plain, **keys))

    # 12 of the first group; 3 or 5 of a window and the tokens without results, and one more.
    assert blocks(kv_groups="sliding 3") == 12 + 4
    assert blocks(kv_groups="sliding 3", steps_in_flight=1) == 12 + 6
    # States: that which is continued, those of the steps; in 0.28.0 none may come back.
    assert blocks(kv_groups="mamba") == 12 + 2
    assert blocks(kv_groups="mamba", steps_in_flight=1, release="0.33.0") == 12 + 3
    assert blocks(kv_groups="mamba", steps_in_flight=1) == 12 + 12


def test_states_before_a_gap_are_given_back_by_the_newer_release_alone() -> None:
    table = (0, 3, 0, 5, 6, 0, 8)

    assert retired_places(table, 5, 7, over_gaps=True) == [1, 3, 4]
    assert retired_places(table, 5, 7, over_gaps=False) == [3, 4]
    assert retired_places(table, 5, 2, over_gaps=False) == [1, 3, 4]
    assert retired_places(table, 6, 2, over_gaps=False) == [1]
    assert retired_places(table, 0, 1, over_gaps=False) == []


def test_only_what_a_hit_could_read_is_kept() -> None:
    # Hits end with a multiple of 16 tokens: a window of 6 tokens reads the last 5 before that.
    window = KvGroup(1, GroupKind.SLIDING, 4, 6)

    assert [is_findable(window, place, 16) for place in range(8)] == [False, False, True, True] * 2
    assert is_findable(KvGroup(2, GroupKind.FULL, 4), 0, 16)


@pytest.mark.parametrize(
    ("start", "end", "last", "junction", "due"),
    [
        (0, 6, 8, 0, 4),  # cut to whole blocks within the prompt
        (0, 3, 8, 0, 0),  # less than a block
        (4, 10, 8, 0, 8),  # the last whole block has an end of its own
        (8, 10, 8, 0, 10),  # what is left of the prompt
        (0, 8, 8, 4, 4),  # where the first group had more of the prefix
        (5, 9, 8, 0, 8),  # no further than the block that it does not begin
        (10, 11, 8, 0, 11),  # behind the prompt
    ],
)
def test_chunks_end_where_states_are_kept(
    start: int, end: int, last: int, junction: int, due: int
) -> None:
    assert state_aligned_end(start, end, 10, 4, 8, last=last, junction=junction) == due


def test_blocks_that_no_chunk_could_hold_are_computed_in_parts() -> None:
    assert state_aligned_end(0, 3, 10, 4, 3, last=8, junction=0) == 3
    assert state_aligned_end(3, 6, 10, 4, 3, last=8, junction=0) == 4


def test_a_prompt_that_ends_with_a_block_may_keep_the_state_before() -> None:
    assert last_state(8, 4, for_same_prompt=False) == 8
    assert last_state(8, 4, for_same_prompt=True) == 4
    assert last_state(9, 4, for_same_prompt=True) == 8
