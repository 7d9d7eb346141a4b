"""Obligations about the layout of a prompt: padding and chunks, for every prompt length.

Source: spyre, "Prefill padding". The solver decides them with the block and chunk sizes given as
numbers, so each is stated for the product's block and every chunk size that it can be run with.
"""

from collections.abc import Callable, Iterator

from checks.proofs.registry import Integer, Statement, obligation
from spec.core.arithmetic import Number, Truth, every, implies
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


def _for_each_chunk_size(integer: Integer, claim: Callable[[Number, int], Truth]) -> Statement:
    """The claim about a prompt of any length, for each chunk size."""
    prompt_len = integer("prompt_len")
    claims = [claim(prompt_len, chunk_size) for chunk_size in CHUNKS]
    return Statement(given=[prompt_len >= 1], claim=every(claims))


@obligation(
    "PRV-PAD-1",
    "The padded length is a multiple of the chunk.",
    bounds=_BOUNDS,
    rules=["SPY-PAD-1"],
)
def padded_length_is_whole_chunks(integer: Integer) -> Statement:
    """Left padding, prompt and right padding add up to it."""

    def claim(prompt_len: Number, chunk_size: int) -> Truth:
        left = left_padding(prompt_len, BLOCK, chunk_size)
        total = left + prompt_len + right_padding(prompt_len, BLOCK)
        return every([total == padded_length(prompt_len, chunk_size), total % chunk_size == 0])

    return _for_each_chunk_size(integer, claim)


@obligation(
    "PRV-PAD-2",
    "Right padding is less than a block.",
    bounds=_BOUNDS,
    rules=["SPY-PAD-2"],
)
def right_padding_is_less_than_a_block(integer: Integer) -> Statement:
    """And never negative."""

    def claim(prompt_len: Number, _chunk_size: int) -> Truth:
        padding = right_padding(prompt_len, BLOCK)
        return every([padding >= 0, padding < BLOCK, (prompt_len + padding) % BLOCK == 0])

    return _for_each_chunk_size(integer, claim)


@obligation(
    "PRV-PAD-3",
    "Left padding is whole blocks and less than a chunk.",
    bounds=_BOUNDS,
    rules=["SPY-PAD-3", "SPY-PFX-9"],
)
def left_padding_is_less_than_a_chunk(integer: Integer) -> Statement:
    """And never negative."""

    def claim(prompt_len: Number, chunk_size: int) -> Truth:
        padding = left_padding(prompt_len, BLOCK, chunk_size)
        return every([padding >= 0, padding < chunk_size, padding % BLOCK == 0])

    return _for_each_chunk_size(integer, claim)


@obligation(
    "PRV-PAD-4",
    "The last block of the padded prompt holds a real token.",
    bounds=_BOUNDS,
    rules=["SPY-PAD-4"],
)
def last_block_holds_a_token(integer: Integer) -> Statement:
    """The last real token lies behind the start of the last block."""

    def claim(prompt_len: Number, chunk_size: int) -> Truth:
        last_block = padded_length(prompt_len, chunk_size) - BLOCK
        return left_padding(prompt_len, BLOCK, chunk_size) + prompt_len > last_block

    return _for_each_chunk_size(integer, claim)


@obligation(
    "PRV-CHK-1",
    "The chunks partition the prompt: the first starts at 0, each starts where the one before "
    "ended, none is empty, the last ends with the prompt.",
    bounds=f"{_BOUNDS}; every chunk",
    rules=["SPY-CHK-5", "SPY-CHK-1"],
)
def chunks_partition_the_prompt(integer: Integer) -> Statement:
    """For any chunk and the one after it."""
    index, prompt_len = integer("chunk"), integer("prompt_len")

    def claims() -> Iterator[Truth]:
        for size in CHUNKS:
            count, left = chunk_count(prompt_len, size), left_padding(prompt_len, BLOCK, size)
            end = chunk_end(index, left, size, prompt_len)
            start = chunk_start(index, left, size)
            inside = every([index >= 0, index < count])
            yield chunk_start(0, left, size) == 0
            yield chunk_end(count - 1, left, size, prompt_len) == prompt_len
            yield implies(inside, every([start < end, end - start <= size]))
            yield implies(
                every([inside, index + 1 < count]), end == chunk_start(index + 1, left, size)
            )

    return Statement(given=[prompt_len >= 1], claim=every(claims()))


@obligation(
    "PRV-CHK-2",
    "The first chunk computes chunk - left padding tokens, or all of a prompt that ends in it.",
    bounds=_BOUNDS,
    rules=["SPY-CHK-1"],
)
def first_chunk_computes_what_padding_leaves(integer: Integer) -> Statement:
    """A prompt that ends in its first chunk is shorter by its right padding."""

    def claim(prompt_len: Number, chunk_size: int) -> Truth:
        left = left_padding(prompt_len, BLOCK, chunk_size)
        end = chunk_end(0, left, chunk_size, prompt_len)
        alone = chunk_count(prompt_len, chunk_size) == 1
        return every(
            [
                implies(alone, end == prompt_len),
                implies(chunk_count(prompt_len, chunk_size) > 1, end == chunk_size - left),
            ]
        )

    return _for_each_chunk_size(integer, claim)


@obligation(
    "PRV-CHK-3",
    "The number of chunks is the prompt length divided by the chunk size, rounded up.",
    bounds=_BOUNDS,
    rules=["SPY-CHK-1"],
)
def chunk_count_is_the_ceiling(integer: Integer) -> Statement:
    """Enough for the prompt, and with one fewer it would not fit."""

    def claim(prompt_len: Number, chunk_size: int) -> Truth:
        count = chunk_count(prompt_len, chunk_size)
        return every([count * chunk_size >= prompt_len, (count - 1) * chunk_size < prompt_len])

    return _for_each_chunk_size(integer, claim)


@obligation(
    "PRV-CHK-4",
    "After a chunk the active chunk is the next one, and before the first it is the first.",
    bounds=f"{_BOUNDS}; every chunk",
    rules=["SPY-CHK-3"],
)
def active_chunk_is_the_next(integer: Integer) -> Statement:
    """Derived from computed tokens and left padding alone."""
    index, prompt_len = integer("chunk"), integer("prompt_len")

    def claims() -> Iterator[Truth]:
        for size in CHUNKS:
            left = left_padding(prompt_len, BLOCK, size)
            end = chunk_end(index, left, size, prompt_len)
            more = every([index >= 0, index + 1 < chunk_count(prompt_len, size)])
            yield active_chunk(0, left, size) == 0
            yield implies(more, active_chunk(end, left, size) == index + 1)

    return Statement(given=[prompt_len >= 1], claim=every(claims()))
