"""Tensors for the device, laid out by hand, position by position, without the engine's help."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import define, field, frozen

from engine.paged.inputs import PagedInput
from engine.spyre.device import DecodeInput, PrefillInput
from spec.spyre.config import SpyreConfig


def config(**overrides: Any) -> SpyreConfig:
    """Blocks of 4, chunks of 8, room for everything else."""
    small = {"block_size": 4, "chunk_size": 8, "max_model_len": 64, "max_num_seqs": 4}
    return SpyreConfig(**(small | {"num_blocks": 40} | overrides))


@define
class Row:
    """A request as the device's caller knows it: all its tokens, and the blocks that it holds.

    `cached`: of its blocks, those that were found in the cache. `computed`: tokens in the cache.
    """

    prompt_len: int
    tokens: list[int]
    blocks: list[int] = field(factory=list)
    cached: int = 0
    computed: int = 0

    @staticmethod
    def of(prompt: Sequence[int], blocks: Sequence[int], cached: int = 0) -> "Row":
        return Row(len(prompt), list(prompt), list(blocks), cached)


def left_padding(prompt_len: int, config: SpyreConfig) -> int:
    """Blocks before the prompt, until prompt and padding are whole chunks."""
    padding = 0
    while (padding + -(-prompt_len // config.block_size)) % config.blocks_per_chunk:
        padding += 1
    return padding * config.block_size


def prefill_input(config: SpyreConfig, row: Row, chunk: int) -> PrefillInput:
    """Chunk `chunk` of the row's prompt; what was cached is computed again, written to block 0."""
    size, length = config.block_size, row.prompt_len
    padding = left_padding(length, config)
    table = [0] * (padding // size) + row.blocks
    token_ids, positions, slots = [], [], []
    for padded in range(chunk * config.chunk_size, (chunk + 1) * config.chunk_size):
        position = padded - padding
        is_real = 0 <= position < length
        is_written = is_real and position >= row.cached * size
        token_ids.append(row.tokens[position] if is_real else 0)
        positions.append(position if is_real else 0)
        slots.append((table[padded // size] if is_written else 0) * size + padded % size)
    end = (chunk + 1) * config.chunk_size
    return PrefillInput(
        token_ids=np.array(token_ids),
        positions=np.array(positions),
        slot_mapping=np.array(slots),
        block_table=np.array([table[: end // size]]),
        left_padding=np.array([padding]),
        length=np.array([min(end, padding + length)]),
        chunk=np.array([chunk]),
        is_last=np.array([int(padding + length <= end)]),
    )


def decode_input(config: SpyreConfig, rows: Sequence[Row]) -> DecodeInput:
    """The newest token of every row, which no block holds yet; each row has the block for it."""
    size, width = config.block_size, max(len(row.blocks) for row in rows)
    paddings = [(width - len(row.blocks)) * size for row in rows]
    newest = [len(row.tokens) - 1 for row in rows]
    pairs = list(zip(rows, newest, strict=True))
    return DecodeInput(
        token_ids=np.array([row.tokens[-1] for row in rows]),
        positions=np.array(newest),
        slot_mapping=np.array([row.blocks[at // size] * size + at % size for row, at in pairs]),
        block_table=np.array([[0] * (width - len(row.blocks)) + row.blocks for row in rows]),
        left_padding=np.array(paddings),
        tkv=np.array(
            [padding + len(row.tokens) for padding, row in zip(paddings, rows, strict=True)]
        ),
    )


@frozen
class PagedRow:
    """A row of a paged step: new `tokens` behind `cached` ones, sampled behind the last of them."""

    tokens: Sequence[int]
    cached: int
    blocks: Sequence[int]
    samples: int = 1


def paged_input(*rows: PagedRow, is_captured: bool = False) -> PagedInput:
    """The rows' new tokens one after the other, in blocks of 4."""
    token_ids, positions, slots, sampled = list[int](), list[int](), list[int](), list[int]()
    bounds, width = [0], max(len(row.blocks) for row in rows)
    for row in rows:
        for position, token in enumerate(row.tokens, start=row.cached):
            token_ids.append(token)
            positions.append(position)
            slots.append(row.blocks[position // 4] * 4 + position % 4)
        bounds.append(len(token_ids))
        sampled += range(len(token_ids) - row.samples, len(token_ids))
    return PagedInput(
        token_ids=np.array(token_ids),
        positions=np.array(positions),
        slot_mapping=np.array(slots),
        cu_seqlens_q=np.array(bounds),
        cached_lens=np.array([row.cached for row in rows]),
        context_lens=np.array([row.cached + len(row.tokens) for row in rows]),
        block_tables=np.array([[*row.blocks, *[-1] * (width - len(row.blocks))] for row in rows]),
        logits_indices=np.array(sampled, np.int64),
        is_captured=np.array([int(is_captured)]),
    )
