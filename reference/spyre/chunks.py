"""Chunks: the cached part of a prompt, and the part that the next prefill step computes.

Source: spyre, "Prefill padding", "Chunked Prefill" and "Prefix caching".
"""

from attrs import evolve

from reference.core.block_pool import lookup
from spec.spyre.padding import (
    active_chunk,
    chunk_count,
    chunk_end,
    chunk_start,
    counted_end,
    left_padding,
    redirected_blocks,
    reused_blocks,
    right_padding,
)
from spec.spyre.records import Chunk, Context
from spec.spyre.state import PADDING_BLOCK, Sequence, State


def remaining_tokens(ctx: Context, sequence: Sequence) -> int:
    """Tokens that the request may still generate."""
    return ctx.requests[sequence.id].max_tokens - sequence.generated


def cached_blocks(ctx: Context, state: State, sequence: Sequence) -> tuple[int, ...]:
    """Cached blocks of the tokens to prefill, the last token left out: it is always computed."""
    if not ctx.config.prefix_caching:
        return ()
    full = (sequence.prefill_len - 1) // ctx.config.block_size
    return lookup(state.pool, ctx.keys.of(sequence.id, full))


def with_prefix_hit(ctx: Context, sequence: Sequence, hits: tuple[int, ...]) -> Sequence:
    """The waiting request as it is after admission, when `hits` are cached.

    It holds all cached blocks; only those of whole skipped chunks count as computed, in 2.6.3 all.
    """
    config = ctx.config
    padding = left_padding(sequence.prefill_len, config.block_size, config.chunk_size)
    reused = reused_blocks(
        len(hits),
        padding // config.block_size,
        config.blocks_per_chunk,
        chunk_count(sequence.prefill_len, config.chunk_size),
    )
    counted = len(hits) if config.account.counts_hits else reused
    return evolve(sequence, blocks=hits, hit_blocks=len(hits), computed=counted * config.block_size)


def next_chunk(ctx: Context, sequence: Sequence) -> Chunk:
    """The chunk that an admitted request computes next; the block table is left out."""
    config, length = ctx.config, sequence.prefill_len
    chunks = chunk_count(length, config.chunk_size)
    padding = left_padding(length, config.block_size, config.chunk_size)
    index = active_chunk(sequence.computed, padding, config.chunk_size)
    layout = (padding // config.block_size, config.blocks_per_chunk, chunks)
    return Chunk(
        id=sequence.id,
        chunk=index,
        chunks=chunks,
        start=chunk_start(index, padding, config.chunk_size),
        end=chunk_end(index, padding, config.chunk_size, length),
        left_padding=padding,
        right_padding=right_padding(length, config.block_size),
        cached_tokens=reused_blocks(sequence.hit_blocks, *layout) * config.block_size,
        inner_padding=redirected_blocks(sequence.hit_blocks, *layout) * config.block_size,
    )


def counted_after(ctx: Context, sequence: Sequence, chunk: Chunk) -> int:
    """Tokens of the request that count as computed after its next chunk."""
    size = ctx.config.chunk_size
    counted = counted_end(
        sequence.computed, chunk.chunk, chunk.left_padding, size, sequence.prefill_len
    )
    return int(counted)


def with_block_table(ctx: Context, chunk: Chunk, sequence: Sequence) -> Chunk:
    """The chunk with the blocks that it reads and writes; padding and cached ones are not written.

    Source: spyre, "Boundary chunk": reads use the cached blocks, writes go to the dummy block.
    """
    config = ctx.config
    padding_blocks = chunk.left_padding // config.block_size
    table = (PADDING_BLOCK,) * padding_blocks + sequence.blocks
    first = chunk.chunk * config.blocks_per_chunk
    own = range(first, first + config.blocks_per_chunk)
    kept = padding_blocks + sequence.hit_blocks
    return evolve(
        chunk,
        block_table=table[: own.stop],
        writes=tuple(PADDING_BLOCK if index < kept else table[index] for index in own),
    )
