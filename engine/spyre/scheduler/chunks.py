"""Which part of a prompt a prefill step computes, and which blocks it reads and writes.

Source: spyre, "Chunked Prefill" and "Prefix caching"; the formulas are those of
`spec/spyre/padding.py`.
"""

from attrs import evolve

from engine.spyre.scheduler.tracked import Tracked
from spec.spyre.config import SpyreConfig
from spec.spyre.padding import (
    active_chunk,
    chunk_count,
    chunk_end,
    chunk_start,
    left_padding,
    redirected_blocks,
    reused_blocks,
    right_padding,
)
from spec.spyre.records import Chunk
from spec.spyre.state import PADDING_BLOCK


def next_chunk(config: SpyreConfig, request: Tracked, hit_blocks: int, computed: int) -> Chunk:
    """The chunk that a request computes next; the block table is left out."""
    length = request.prefill_len
    chunks = chunk_count(length, config.chunk_size)
    padding = left_padding(length, config.block_size, config.chunk_size)
    index = active_chunk(computed, padding, config.chunk_size)
    layout = (padding // config.block_size, config.blocks_per_chunk, chunks)
    return Chunk(
        id=request.id,
        chunk=index,
        chunks=chunks,
        start=chunk_start(index, padding, config.chunk_size),
        end=chunk_end(index, padding, config.chunk_size, length),
        left_padding=padding,
        right_padding=right_padding(length, config.block_size),
        cached_tokens=reused_blocks(hit_blocks, *layout) * config.block_size,
        inner_padding=redirected_blocks(hit_blocks, *layout) * config.block_size,
    )


def first_chunk(config: SpyreConfig, request: Tracked, hit_blocks: int) -> Chunk:
    """The chunk that a waiting request would begin with if so many blocks are cached."""
    length = request.prefill_len
    padding = left_padding(length, config.block_size, config.chunk_size)
    chunks = chunk_count(length, config.chunk_size)
    layout = (padding // config.block_size, config.blocks_per_chunk, chunks)
    computed = reused_blocks(hit_blocks, *layout) * config.block_size
    return next_chunk(config, request, hit_blocks, computed)


def with_block_table(
    config: SpyreConfig, chunk: Chunk, table: tuple[int, ...], hit_blocks: int
) -> Chunk:
    """The chunk with the blocks that it reads and writes, out of the request's own `table`.

    Source: spyre, "Boundary chunk": reads use the cached blocks, writes go to the dummy block.
    """
    padding_blocks = chunk.left_padding // config.block_size
    padded = (PADDING_BLOCK,) * padding_blocks + table
    first = chunk.chunk * config.blocks_per_chunk
    end = first + config.blocks_per_chunk
    kept = min(max(padding_blocks + hit_blocks - first, 0), config.blocks_per_chunk)
    return evolve(
        chunk,
        block_table=padded[:end],
        writes=(PADDING_BLOCK,) * kept + padded[first + kept : end],
    )
