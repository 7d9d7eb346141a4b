"""The input tensors of a ragged batch, made from its rows.

Source: nano-vllm, "Block Tables: Logical Memory Map"; for rows with several samples vllm-v1,
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
    """The tokens that a step computes for one request; lengths in tokens.

    - `tokens`: token ids to compute, drafts included.
    - `cached`: number of tokens before these.
    - `samples`: number of sampled tokens, one after each of the last `samples` tokens.
    - `due`: the request gets the first `due` samples, unless it ends earlier; the other samples
      follow rejected drafts.
    """

    tokens: Tensor
    cached: int
    blocks: Sequence[int]
    samples: int
    due: int

    @property
    def context(self) -> int:
        """Number of tokens that the row attends to."""
        return self.cached + len(self.tokens)

    @property
    def first_sampled_position(self) -> int:
        """Position in the request of the first token that the row samples, from 0."""
        return self.context - self.samples + 1


def paged_input(rows: Sequence[Row], block_size: int, is_captured: bool = False) -> PagedInput:
    """The input tensors of a batch of rows.

    A row with too few blocks gets slots in its last block; the device refuses them.
    """
    counts = np.array([len(row.tokens) for row in rows])
    cached = np.array([row.cached for row in rows])
    ends = counts.cumsum()
    row_indices = np.repeat(np.arange(len(rows)), counts)
    places = np.arange(ends[-1])
    positions = places + (cached - ends + counts)[row_indices]
    table = _padded_tables([row.blocks for row in rows])
    last_column = np.array([len(row.blocks) - 1 for row in rows])
    columns = np.minimum(block_index(positions, block_size), last_column[row_indices])
    unsampled = ends - np.array([row.samples for row in rows])
    return PagedInput(
        token_ids=np.concatenate([row.tokens for row in rows]),
        positions=positions,
        slot_mapping=slot(table[row_indices, columns], positions, block_size),
        cu_seqlens_q=np.concatenate([[0], ends]),
        cached_lens=cached,
        context_lens=cached + counts,
        block_tables=table,
        logits_indices=np.flatnonzero(places >= unsampled[row_indices]),
        is_captured=np.array([int(is_captured)]),
    )


def _padded_tables(tables: Sequence[Sequence[int]]) -> Tensor:
    """The block tables, padded with -1; [rows, width]."""
    width = max(len(table) for table in tables)
    padded = np.full((len(tables), width), NO_BLOCK, np.int64)
    for row, table in enumerate(tables):
        padded[row, : len(table)] = table
    return padded
