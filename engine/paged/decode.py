"""The input tensors of a decode batch, made from the arrays of admitted requests.

Source: nano-vllm, chapter 9 ("Scheduler to GPU Execution").
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from engine.core.decoding import Batch, RequestState
from engine.core.requests import Slots
from engine.core.tensors import Tensor
from engine.paged.inputs import NO_BLOCK, PagedInput
from spec.core.blocks import slot

RowT = TypeVar("RowT", bound=RequestState)
Fresh = Mapping[RowT, Sequence[int]]


def decode_input(
    slots: Slots,
    batch: Batch[RowT],
    steps: int,
    fresh: Fresh[RowT],
    block_size: int,
    *,
    is_captured: bool = False,
) -> PagedInput:
    """The input tensors for the newest token of every row.

    `steps`: decode steps so far. `fresh`: blocks that this step allocates, by row. A row with too
    few blocks gets a slot in its last block; the device refuses it.
    """
    rows = np.arange(len(batch.rows))
    computed = batch.starts + steps
    tables = _tables(slots, batch, fresh)
    last_column = (tables != NO_BLOCK).sum(axis=1) - 1
    columns = np.minimum(computed // block_size, last_column)
    return PagedInput(
        token_ids=slots.outputs[batch.slots, batch.outputs + steps],
        positions=computed,
        slot_mapping=slot(tables[rows, columns], computed, block_size),
        cu_seqlens_q=np.arange(len(rows) + 1),
        cached_lens=computed,
        context_lens=computed + 1,
        block_tables=tables,
        logits_indices=rows,
        is_captured=np.array([int(is_captured)]),
    )


def _tables(slots: Slots, batch: Batch[RowT], fresh: Fresh[RowT]) -> Tensor:
    """The rows' block tables, including the blocks that this step allocates; [rows, width]."""
    held = [len(row.blocks) for row in batch.rows]
    width = max(
        count + len(fresh.get(row, ())) for row, count in zip(batch.rows, held, strict=True)
    )
    tables = np.full((len(held), width), NO_BLOCK, np.int64)
    stored = min(width, slots.tables.shape[1])
    tables[:, :stored] = slots.tables[batch.slots, :stored]
    tables[np.arange(width) >= np.array(held)[:, np.newaxis]] = NO_BLOCK
    if fresh:
        for place, row in enumerate(batch.rows):
            own = fresh.get(row, ())
            tables[place, held[place] : held[place] + len(own)] = own
    return tables
