"""The layout of prompts and decode batches: padding, chunks and tkv.

Source: spyre, sections "Padding", "Prefill padding" and "Decode padding". All lengths are
in tokens unless the name ends in `_blocks` or `_chunks`; every formula takes integers or
solver terms.
"""

from spec.core.arithmetic import (
    Number,
    Truth,
    cdiv,
    floor_div,
    maximum,
    minimum,
    round_up,
    select,
    some,
)
from spec.core.blocks import block_count
from spec.core.rows import Rows, any_of, each_of, largest_of

# --- prefill: the prompt is right-aligned in a whole number of chunks -----------------------


def right_padding(prompt_len: Number, block_size: Number) -> Number:
    """Tokens that fill the prompt's last block (spyre, "Right-alignment")."""
    return round_up(prompt_len, block_size) - prompt_len


def chunk_count(prompt_len: Number, chunk_size: Number) -> Number:
    """Chunks that a prompt occupies, left padding included (spyre, "Chunked Prefill")."""
    return cdiv(prompt_len, chunk_size)


def padded_length(prompt_len: Number, chunk_size: Number) -> Number:
    """Length of the padded prompt, a multiple of the chunk (spyre, "Right-alignment")."""
    return chunk_count(prompt_len, chunk_size) * chunk_size


def left_padding(prompt_len: Number, block_size: Number, chunk_size: Number) -> Number:
    """Dummy tokens before the prompt, whole blocks of them (spyre, "Right-alignment")."""
    return padded_length(prompt_len, chunk_size) - round_up(prompt_len, block_size)


def active_chunk(computed: Number, left_padding_tokens: Number, chunk_size: Number) -> Number:
    """Index of the chunk that is next when `computed` prompt tokens are in the cache.

    Source: spyre, "Chunked Prefill": computed tokens, offset by the left padding.
    """
    return floor_div(left_padding_tokens + computed, chunk_size)


def chunk_start(chunk: Number, left_padding_tokens: Number, chunk_size: Number) -> Number:
    """Prompt position of the chunk's first real token; the first chunk starts after padding."""
    return maximum(chunk * chunk_size - left_padding_tokens, 0)


def chunk_end(
    chunk: Number, left_padding_tokens: Number, chunk_size: Number, prompt_len: Number
) -> Number:
    """Prompt position after the chunk's last real token; the last chunk ends in right padding."""
    return minimum((chunk + 1) * chunk_size - left_padding_tokens, prompt_len)


def counted_end(
    computed: Number,
    chunk: Number,
    left_padding_tokens: Number,
    chunk_size: Number,
    prompt_len: Number,
) -> Number:
    """Tokens that count as computed after a chunk: all that it has room for, beyond `computed`.

    Its end, unless more counted as computed than stood before the chunk (2.6.3, a prefix hit).
    """
    room = (chunk + 1) * chunk_size - maximum(chunk * chunk_size, left_padding_tokens)
    return minimum(computed + room, prompt_len)


# --- prefix caching: whole chunks are skipped, the rest is computed again -------------------


def skipped_chunks(
    hit_blocks: Number, left_padding_blocks: Number, blocks_per_chunk: Number, chunks: Number
) -> Number:
    """Leading chunks that need no computation because all their blocks are cached.

    Left-padding blocks count as cached: there is nothing in them to compute. The last chunk
    is never skipped. Source: spyre, "Skipping full chunks".
    """
    return minimum(floor_div(left_padding_blocks + hit_blocks, blocks_per_chunk), chunks - 1)


def reused_blocks(
    hit_blocks: Number, left_padding_blocks: Number, blocks_per_chunk: Number, chunks: Number
) -> Number:
    """Cached blocks whose tokens are not computed again: those of the skipped chunks."""
    skipped = skipped_chunks(hit_blocks, left_padding_blocks, blocks_per_chunk, chunks)
    return maximum(skipped * blocks_per_chunk - left_padding_blocks, 0)


def redirected_blocks(
    hit_blocks: Number, left_padding_blocks: Number, blocks_per_chunk: Number, chunks: Number
) -> Number:
    """Cached blocks that are computed again and whose writes go to the dummy block.

    Source: spyre, "Boundary chunk" (the figure calls them inner padding).
    """
    return hit_blocks - reused_blocks(hit_blocks, left_padding_blocks, blocks_per_chunk, chunks)


# --- decode: every row of the batch occupies equally many blocks ----------------------------


def longest(lengths: Rows) -> Number:
    """Tokens of the longest row; at least one row."""
    return largest_of(lengths, lambda length: length)


def batch_width_blocks(lengths: Rows, block_size: Number) -> Number:
    """Blocks of every row: those of the longest (spyre, "Left-padding with full blocks").

    `lengths` are the rows' tokens without padding, at least one row.
    """
    return block_count(longest(lengths), block_size)


def row_left_padding(length: Number, width_blocks: Number, block_size: Number) -> Number:
    """Left padding of a decode row, the least that makes the table rectangular."""
    return (width_blocks - block_count(length, block_size)) * block_size


def row_tkv(computed: Number, left_padding_tokens: Number) -> Number:
    """Tkv of a row after `computed` tokens, the one of this step included.

    Source: spyre, "Per-request tkv": padding, tokens computed before the step, plus one.
    """
    return left_padding_tokens + computed


def last_block_offset(length: Number, block_size: Number) -> Number:
    """How far `length` tokens reach into their last block, from 1 to `block_size`."""
    return length - (block_count(length, block_size) - 1) * block_size


def is_kept_length(max_model_len: Number, block_size: Number) -> Truth:
    """True if no tkv exceeds this model length once every request's prompt and output fit it.

    One block or less, a multiple of the block, or one token more than a multiple: the last token of
    a request is never written. Proofs: PRV-LEN-1 and PRV-LEN-5, and PRV-LEN-2 for other lengths.
    """
    return some(
        [
            max_model_len <= block_size,
            last_block_offset(max_model_len, block_size) == block_size,
            last_block_offset(max_model_len, block_size) == 1,
        ]
    )


def max_tkv(lengths: Rows, block_size: Number) -> Number:
    """The largest tkv of a decode batch: its width less one block plus the largest offset.

    Source: spyre, "Per-request tkv". `lengths` are the rows' tokens without padding, at least
    one row, the token of this step included.
    """
    offset = largest_of(lengths, lambda length: last_block_offset(length, block_size))
    return (batch_width_blocks(lengths, block_size) - 1) * block_size + offset


def volume(batch_size: Number, tkv: Number) -> Number:
    """KV-cache volume of a step, in tokens (spyre, "Max batch-tkv limit")."""
    return batch_size * tkv


def reaches_block_end(first: Number, last: Number, block_size: Number) -> Number:
    """True if some length from `first` to `last` fills its last block exactly."""
    return floor_div(last, block_size) * block_size >= first


def peak_tkv(lengths: Rows, steps: Number, block_size: Number) -> Number:
    """The largest tkv of a batch that decodes for `steps` steps without losing a row.

    Of all steps, those at the final width have the larger tkv. There the offset of a row only
    grows until the row fills its block: if one does, the peak is the full width, else it is
    the tkv of the last step. `lengths` are the rows' tokens before the first of the steps.
    """
    final = each_of(lengths, lambda length: length + steps)
    width = batch_width_blocks(final, block_size)
    first_at_width = maximum((width - 1) * block_size + 1 - longest(lengths), 1)
    fills = any_of(
        lengths,
        lambda length: reaches_block_end(length + first_at_width, length + steps, block_size),
    )
    return select(fills, width * block_size, max_tkv(final, block_size))
