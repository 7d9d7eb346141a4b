"""The configuration of nano-vLLM, and its formulas by number; what is proven stands elsewhere."""

import pytest

from spec.core.blocks import block_count
from spec.core.errors import WorkloadError
from spec.core.requests import BlockKeys, Prompt, Request
from spec.nano_vllm.block_hashes import ContentKeys, content
from spec.nano_vllm.config import (
    FullHit,
    GraphSizes,
    MemoryGate,
    NanoVllmConfig,
    NewBlock,
    TokenGate,
    refuse_unservable,
)
from spec.nano_vllm.formulas import (
    can_allocate,
    can_append,
    captured_sizes,
    counted_tokens,
    graph_batch_size,
    lookup_blocks,
    starts_block,
    within_budget,
)
from tests.refusals import refusal


def test_defaults_are_those_of_the_release_but_for_oversized_requests() -> None:
    assert NanoVllmConfig().as_mapping() == {
        "policy": "nano-vllm",
        "block_size": 256,
        "max_num_seqs": 512,
        "max_num_batched_tokens": 16_384,
        "max_model_len": 4_096,
        "token_gate": "full_length",
        "memory_gate": "all_blocks",
        "sequence_limit": "batch",
        "new_block": "after_boundary",
        "hit_check": "tokens",
        "full_hit": "all_cached",
        "graph_sizes": "released",
        "oversized": "refused",
        "prefill_time": 8.0,
        "decode_time": 1.0,
    }


# --- blocks and gates -----------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "blocks"), [(1, 1), (256, 1), (257, 2), (512, 2), (513, 3)])
def test_blocks_of_a_sequence(length: int, blocks: int) -> None:
    assert block_count(length, 256) == blocks


def test_new_block_is_needed_at_257_tokens_or_as_drawn_at_256() -> None:
    lengths = range(255, 259)

    released = [starts_block(one, 256, NewBlock.AFTER_BOUNDARY) for one in lengths]
    drawn = [starts_block(one, 256, NewBlock.AT_BOUNDARY) for one in lengths]

    assert released == [False, False, True, False]
    assert drawn == [False, True, False, False]


def test_free_block_is_asked_for_only_where_one_is_needed() -> None:
    reading = NewBlock.AFTER_BOUNDARY

    assert [can_append(0, one, 256, reading) for one in (256, 257, 258)] == [True, False, True]
    assert can_append(1, 257, 256, reading)


def test_last_block_of_a_prompt_that_ends_with_it_is_looked_up_or_not() -> None:
    lengths = (511, 512, 513)

    assert [lookup_blocks(one, 256, FullHit.ALL_CACHED) for one in lengths] == [1, 2, 2]
    assert [lookup_blocks(one, 256, FullHit.LAST_COMPUTED) for one in lengths] == [1, 1, 2]


@pytest.mark.parametrize(
    ("gate", "passes"), [(TokenGate.FULL_LENGTH, False), (TokenGate.NEW_TOKENS, True)]
)
def test_cached_tokens_weigh_or_do_not(gate: TokenGate, passes: bool) -> None:
    counted = counted_tokens(300, 256, gate)

    assert within_budget(900, counted, 1_000) is passes
    assert within_budget(900, 100, 1_000)
    assert not within_budget(900, 101, 1_000)


@pytest.mark.parametrize(
    ("gate", "passes"), [(MemoryGate.ALL_BLOCKS, False), (MemoryGate.NEW_BLOCKS, True)]
)
def test_blocks_that_others_hold_need_a_free_one_or_do_not(gate: MemoryGate, passes: bool) -> None:
    assert can_allocate(2, 3, 1, gate) is passes
    assert can_allocate(3, 3, 0, gate)
    assert not can_allocate(2, 3, 0, gate)


# --- graphs ---------------------------------------------------------------------------------------


def test_captured_sizes() -> None:
    assert captured_sizes(48, GraphSizes.RELEASED) == (1, 2, 4, 8, 16, 32, 48)
    assert captured_sizes(48, GraphSizes.POWERS_OF_TWO) == (1, 2, 4, 8, 16, 32, 64)
    assert captured_sizes(1, GraphSizes.POWERS_OF_TWO) == (1,)


def test_no_released_size_holds_a_batch_above_the_last_multiple_of_16() -> None:
    """Batches of 17 to 20 where 20 sequences are allowed; powers of two hold all."""
    sizes = {one: graph_batch_size(one, 20, GraphSizes.RELEASED) for one in (15, 16, 17, 20)}

    assert sizes == {15: 16, 16: 16, 17: None, 20: None}
    assert graph_batch_size(17, 20, GraphSizes.POWERS_OF_TWO) == 32


# --- requests and their keys ----------------------------------------------------------------------


def _request(id_: str, tokens: str, max_tokens: int = 4) -> Request:
    prompt = Prompt.of_tokens([ord(one) for one in tokens])
    return Request(id=id_, prompt=prompt, max_tokens=max_tokens, output=(1, 2, 3, 4)[:max_tokens])


def test_keys_hold_the_prefix_and_the_block_s_own_tokens() -> None:
    keys = ContentKeys({one.id: one for one in (_request("0", "ppaa"), _request("1", "qqaa"))}, 2)

    behind_p, behind_q = keys.of("0", 2)[1], keys.of("1", 2)[1]

    assert behind_p != behind_q
    assert content(behind_p) == content(behind_q)
    assert content(keys.of("0", 1)[0]) != content(behind_p)


def test_keys_grow_with_the_answer_and_are_the_same_after_being_forgotten() -> None:
    keys = ContentKeys({"0": _request("0", "abc")}, 2)
    first = list(keys.of("0", 1))

    longer = list(keys.of("0", 3))
    keys.forget("0")

    assert longer[:1] == first
    assert list(keys.of("0", 3)) == longer


@pytest.mark.parametrize(
    ("max_tokens", "num_blocks", "message"),
    [
        (2, 2, None),  # the fifth token is the last and never written
        (3, 2, "blocks of prompt_len + max_tokens - 1: found 3; allowed: at most num_blocks (2)"),
        (8, 9, "prompt_len + max_tokens: found 11; allowed: at most max_model_len (10)"),
    ],
)
def test_oversized_request_is_refused(
    max_tokens: int, num_blocks: int, message: str | None
) -> None:
    config = NanoVllmConfig(
        block_size=2, max_model_len=10, max_num_batched_tokens=10, num_blocks=num_blocks
    )
    asked = Request(id="0", prompt=Prompt.of_tokens((1, 2, 3)), max_tokens=max_tokens)

    if message is None:
        refuse_unservable(asked, config)
        return
    assert refusal(WorkloadError, refuse_unservable, asked, config) == message


def test_a_key_has_the_chained_hash_of_all_tokens_and_that_of_its_own() -> None:
    first, second = b"first of all", b"second block"
    plain = BlockKeys.key_behind(BlockKeys.key_behind(b"", first), second)

    key = ContentKeys.key_behind(ContentKeys.key_behind(b"", first), second)

    assert key == plain + content(ContentKeys.key_behind(b"", second))
