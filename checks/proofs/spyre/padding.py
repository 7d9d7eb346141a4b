"""Obligations about the layout of a prompt: padding and chunks, for every prompt length.

Source: spyre, "Prefill padding". The solver decides them with the block and chunk sizes given as
numbers, so each is stated for the product's block and every chunk size that it can be run with.
"""

from functools import partial

from checks.proofs.registry import Positive, Statement
from checks.proofs.spyre.scope import obligation
from spec.core.arithmetic import Number, every, implies
from spec.spyre.padding import (
    active_chunk,
    chunk_count,
    chunk_end,
    chunk_start,
    left_padding,
    padded_length,
    right_padding,
)

BLOCK = 64  # tokens, of the product
CHUNKS = tuple(BLOCK * count for count in (1, 2, 3, 4, 6, 8, 16, 32, 64))  # 64 to 4,096 tokens
_BOUNDS = "every prompt length; block 64, chunks 64 to 4,096"

_of_prompts = partial(obligation, bounds=_BOUNDS, each=[{"size": size} for size in CHUNKS])
_TEXT = "reading=text"  # the release counts more tokens than it has computed after some hits
_of_chunks = partial(_of_prompts, bounds=f"{_BOUNDS}; every chunk")


@_of_prompts("PRV-PAD-1", rules=["SPY-PAD-1"])
def padded_length_is_whole_chunks(prompt_len: Positive, size: int) -> Statement:
    """The padded length is a multiple of the chunk."""
    left, right = left_padding(prompt_len, BLOCK, size), right_padding(prompt_len, BLOCK)
    total = left + prompt_len + right
    return Statement([total == padded_length(prompt_len, size), total % size == 0])


@_of_prompts("PRV-PAD-2", rules=["SPY-PAD-2"])
def right_padding_is_less_than_a_block(prompt_len: Positive) -> Statement:
    """Right padding is less than a block."""
    padding = right_padding(prompt_len, BLOCK)
    return Statement([padding >= 0, padding < BLOCK, (prompt_len + padding) % BLOCK == 0])


@_of_prompts("PRV-PAD-3", rules=["SPY-PAD-3", "SPY-PFX-9"])
def left_padding_is_less_than_a_chunk(prompt_len: Positive, size: int) -> Statement:
    """Left padding is whole blocks and less than a chunk."""
    padding = left_padding(prompt_len, BLOCK, size)
    return Statement([padding >= 0, padding < size, padding % BLOCK == 0])


@_of_prompts("PRV-PAD-4", rules=["SPY-PAD-4"])
def last_block_holds_a_token(prompt_len: Positive, size: int) -> Statement:
    """The last block of the padded prompt holds a real token."""
    last_block = padded_length(prompt_len, size) - BLOCK
    return Statement(left_padding(prompt_len, BLOCK, size) + prompt_len > last_block)


@_of_chunks("PRV-CHK-1", where=_TEXT, rules=["SPY-CHK-5"])
def chunks_partition_the_prompt(chunk: Number, prompt_len: Positive, size: int) -> Statement:
    """The chunks partition the prompt: the first starts at 0, each starts where the one before
    ended, none is empty, the last ends with the prompt.
    """
    count, left = chunk_count(prompt_len, size), left_padding(prompt_len, BLOCK, size)
    start, end = chunk_start(chunk, left, size), chunk_end(chunk, left, size, prompt_len)
    inside = every([chunk >= 0, chunk < count])
    return Statement(
        [
            chunk_start(0, left, size) == 0,
            chunk_end(count - 1, left, size, prompt_len) == prompt_len,
            implies(inside, every([start < end, end - start <= size])),
            implies(every([inside, chunk + 1 < count]), end == chunk_start(chunk + 1, left, size)),
        ]
    )


@_of_prompts("PRV-CHK-2", rules=[])
def first_chunk_computes_what_padding_leaves(prompt_len: Positive, size: int) -> Statement:
    """The first chunk computes chunk - left padding tokens, or all of a prompt that ends in it."""
    # A prompt that ends in its first chunk is shorter by its right padding.
    left = left_padding(prompt_len, BLOCK, size)
    end, count = chunk_end(0, left, size, prompt_len), chunk_count(prompt_len, size)
    return Statement(
        [implies(count == 1, end == prompt_len), implies(count > 1, end == size - left)]
    )


@_of_prompts("PRV-CHK-3", rules=[])
def chunk_count_is_the_ceiling(prompt_len: Positive, size: int) -> Statement:
    """The number of chunks is the prompt length divided by the chunk size, rounded up."""
    # Enough for the prompt, and with one fewer it would not fit.
    count = chunk_count(prompt_len, size)
    return Statement([count * size >= prompt_len, (count - 1) * size < prompt_len])


@_of_chunks("PRV-CHK-4", where=_TEXT, rules=["SPY-CHK-3"])
def active_chunk_is_the_next(chunk: Number, prompt_len: Positive, size: int) -> Statement:
    """After a chunk the active chunk is the next one, and before the first it is the first."""
    left = left_padding(prompt_len, BLOCK, size)
    end = chunk_end(chunk, left, size, prompt_len)
    more = every([chunk >= 0, chunk + 1 < chunk_count(prompt_len, size)])
    follows = implies(more, active_chunk(end, left, size) == chunk + 1)
    return Statement([active_chunk(0, left, size) == 0, follows])
