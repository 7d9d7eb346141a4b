"""The tensors of a batch of rows, each of which computes any number of tokens.

Source: nano-vllm, "Block Tables: Logical Memory Map"; what a row of several samples is, vllm-v1,
"Speculative Decoding".
"""

from collections.abc import Sequence

import numpy as np
from attrs import frozen

from engine.core.tensors import Tensor
from engine.paged.inputs import NO_BLOCK, PagedInput
from spec.core.blocks import block_index, slot


@frozen(eq=False)
class Row:
    """What a step computes of one request; lengths in tokens.

    `tokens`: the ids to compute, drafts included. `cached`: tokens before them. `samples`: behind
    how many of the last tokens one is sampled. `due`: the first so many of the samples are what the
    request gets, unless it ends before; the others are behind rejected drafts.
    """

    tokens: Tensor
    cached: int
    blocks: Sequence[int]
    samples: int
    due: int

    @property
    def context(self) -> int:
        """Tokens that the row attends to."""
        return self.cached + len(self.tokens)

    @property
    def sampled_from(self) -> int:
        """Position of the first token that it samples, from 0 in the request."""
        return self.context - self.samples + 1


def paged_input(rows: Sequence[Row], block_size: int, is_captured: bool = False) -> PagedInput:
    """The tensors of a batch of rows.

    A row with too few blocks is refused by the device: its slots are worked out all the same.
    """
    counts = np.array([len(row.tokens) for row in rows])
    cached = np.array([row.cached for row in rows])
    ends = counts.cumsum()
    of = np.repeat(np.arange(len(rows)), counts)
    places = np.arange(ends[-1])
    positions = places + (cached - ends + counts)[of]
    table = _filled_up([row.blocks for row in rows])
    last_column = np.array([len(row.blocks) - 1 for row in rows])
    columns = np.minimum(block_index(positions, block_size), last_column[of])
    unsampled = ends - np.array([row.samples for row in rows])
    return PagedInput(
        token_ids=np.concatenate([row.tokens for row in rows]),
        positions=positions,
        slot_mapping=slot(table[of, columns], positions, block_size),
        cu_seqlens_q=np.concatenate([[0], ends]),
        cached_lens=cached,
        context_lens=cached + counts,
        block_tables=table,
        logits_indices=np.flatnonzero(places >= unsampled[of]),
        is_captured=np.array([int(is_captured)]),
    )


def _filled_up(tables: Sequence[Sequence[int]]) -> Tensor:
    """The tables [rows, width], the shorter ones with -1 behind their blocks."""
    width = max(len(table) for table in tables)
    filled = np.full((len(tables), width), NO_BLOCK, np.int64)
    for row, table in enumerate(tables):
        filled[row, : len(table)] = table
    return filled
