"""Counts for the rules, by definition: blocks, slots and captured sizes, one by one.

The machine has a closed form for most of this; here it is what the words mean.
"""

from itertools import count

from spec.core.records import PREFILL
from spec.nano_vllm.config import FullHit, GraphSizes, NanoVllmConfig, NewBlock, Prefill
from spec.nano_vllm.records import Sequence, Step


def needed_blocks(tokens: int, size: int) -> int:
    """Blocks that `tokens` tokens need."""
    return len(range(0, tokens, size))


def pool_blocks(config: NanoVllmConfig) -> int:
    """Blocks of the pool: as configured, by default enough for all sequences at full length."""
    if config.num_blocks is not None:
        return config.num_blocks
    return config.max_num_seqs * needed_blocks(config.max_model_len, config.block_size)


def blocks_to_find(config: NanoVllmConfig, tokens: int) -> int:
    """Whole blocks of a sequence; where its last token is computed, those that end before it."""
    ends = range(config.block_size, tokens + 1, config.block_size)
    is_whole = config.full_hit is FullHit.LAST_COMPUTED and tokens in ends
    return len(ends) - is_whole


def is_decoded_first(config: NanoVllmConfig, tokens: int, cached: int) -> bool:
    """True if a sequence needs no prefill, because all its blocks were found."""
    return config.full_hit is FullHit.LAST_DECODED and tokens == cached * config.block_size


def first_position(step: Step, row: Sequence, size: int) -> int:
    """The first token that the step computed of a row of its batch; blocks of `size` tokens.

    A prefill goes on where its last part ended, and begins behind the blocks that were found.
    """
    if step.kind != PREFILL:
        return row.computed - 1
    begun = (
        waiting.computed
        for waiting in step.before.waiting
        if waiting.blocks and waiting.id == row.id
    )
    return next(begun, row.hit_blocks * size)


def tokens_due(config: NanoVllmConfig, step: Step, row: Sequence) -> int:
    """The tokens that a row of the batch has to compute: a token, or those missing of its prefill.

    Where a prefill may be cut, the first row of the step computes no more than the budget.
    """
    if step.kind != PREFILL:
        return 1
    missing = row.prefill_len - first_position(step, row, config.block_size)
    may_be_cut = config.prefill is Prefill.FIRST_CHUNKED and row.id == step.batch[0].id
    return min(missing, config.max_num_batched_tokens) if may_be_cut else missing


def needs_block(config: NanoVllmConfig, row: Sequence) -> bool:
    """True if a running sequence must be handed a block to decode its newest token.

    To the letter of the text that is one block early: when the token fills its block.
    """
    slots = len(row.blocks) * config.block_size
    after = config.new_block is NewBlock.AFTER_BOUNDARY
    return slots == (row.computed if after else row.computed + 1)


def captured_size(config: NanoVllmConfig, batch: int) -> int | None:
    """The least size that was captured and holds the batch; None if there is none."""
    if config.graph_sizes is GraphSizes.POWERS_OF_TWO:
        return next(size for size in count(batch) if size.bit_count() == 1)
    largest = max(config.max_num_seqs, 8)
    captured = (size for size in range(batch, largest + 1) if size in (1, 2, 4, 8) or not size % 16)
    return next(captured, None)
