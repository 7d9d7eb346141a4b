"""The configuration of nano-vLLM, and worked numbers of its formulas."""

import pytest

from spec.core.errors import WorkloadError
from spec.core.requests import BlockKeys, Prompt, Request
from spec.nano_vllm.block_hashes import ContentKeys, content
from spec.nano_vllm.config import (
    GraphSizes,
    NanoVllmConfig,
    NewBlock,
    refuse_unservable,
)
from spec.nano_vllm.formulas import (
    graph_batch_size,
    starts_block,
)
from tests.refusals import refusal

# --- blocks and gates -----------------------------------------------------------------------------


def test_new_block_is_needed_at_257_tokens_or_as_drawn_at_256() -> None:
    lengths = range(255, 259)

    released = [starts_block(length, 256, NewBlock.AFTER_BOUNDARY) for length in lengths]
    drawn = [starts_block(length, 256, NewBlock.AT_BOUNDARY) for length in lengths]

    assert released == [False, False, True, False]
    assert drawn == [False, True, False, False]


# --- graphs ---------------------------------------------------------------------------------------


def test_no_released_size_holds_a_batch_above_the_last_multiple_of_16() -> None:
    """Batches of 17 to 20 where 20 sequences are allowed; powers of two hold all."""
    sizes = {rows: graph_batch_size(rows, 20, GraphSizes.RELEASED) for rows in (15, 16, 17, 20)}

    assert sizes == {15: 16, 16: 16, 17: None, 20: None}
    assert graph_batch_size(17, 20, GraphSizes.POWERS_OF_TWO) == 32


# --- requests and their keys ----------------------------------------------------------------------


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
