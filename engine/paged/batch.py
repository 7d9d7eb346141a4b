"""Constraints on the tensors of a paged step that do not depend on the KV cache.

Source: nano-vllm, "Block Tables: Logical Memory Map" and "CUDA Graphs"; vllm-v1, "Memory Management
& Preemption" and "Speculative Decoding".
"""

from typing import Self

import numpy as np
from attrs import frozen

from engine.core.faults import Constraint, check_form, check_tokens, refuse_if, refuse_where
from engine.core.tensors import Flags, Tensor
from engine.paged.inputs import NO_BLOCK, PagedInput, PagedShape


@frozen(eq=False)
class PagedBatch:
    """The places of the tokens of a checked step.

    - `rows`, `columns` [tokens]: row of each token, and column of its block in the block table.
    - `blocks`, `slots` [tokens]: block that it is written to, and offset in the block.
    - `is_first` [tokens]: whether it is the first token that its row writes to the block.
    """

    rows: Tensor
    columns: Tensor
    blocks: Tensor
    slots: Tensor
    is_first: Flags

    @classmethod
    def of(cls, shape: PagedShape, inputs: PagedInput) -> Self:
        """The places as positions and block tables determine them."""
        rows = np.repeat(np.arange(len(inputs.cached_lens)), np.diff(inputs.cu_seqlens_q))
        columns, slots = np.divmod(inputs.positions, shape.block_size)
        is_first = slots == 0
        is_first[inputs.cu_seqlens_q[:-1]] = True
        return cls(rows, columns, inputs.block_tables[rows, columns], slots, is_first)

    def taken(self, places: Tensor) -> Self:
        """The tokens at the indices `places`, which must be in the order of their slots."""
        blocks, slots = self.blocks[places], self.slots[places]
        continues = (np.diff(blocks, prepend=-1) == 0) & (np.diff(slots, prepend=-1) == 1)
        return type(self)(self.rows[places], self.columns[places], blocks, slots, ~continues)


def checked_batch(shape: PagedShape, inputs: PagedInput) -> PagedBatch:
    """Check the tensors of a step: the places of its tokens.

    Raises:
        ConstraintError: for the first broken constraint.
    """
    _check_form(inputs)
    _check_lengths(inputs)
    _check_limits(shape, inputs)
    _check_table(shape, inputs)
    check_tokens("token", inputs.token_ids, True)
    _check_positions(shape, inputs)
    batch = PagedBatch.of(shape, inputs)
    _check_slots(shape, inputs, batch)
    _check_held(shape, inputs, batch)
    return batch


def _check_form(inputs: PagedInput) -> None:
    """The block table has a row and a column or more; all tensors agree on rows and tokens."""
    shape = inputs.block_tables.shape
    malformed = len(shape) != 2 or 0 in shape
    refuse_if(malformed, Constraint.SHAPE, tensor="block_tables", shape=str(shape))
    rows, tokens = (shape[0],), (inputs.token_ids.size,)
    per_token = dict.fromkeys(("token_ids", "positions", "slot_mapping"), tokens)
    per_row = dict.fromkeys(("cached_lens", "context_lens"), rows)
    others = {
        "block_tables": shape,
        "cu_seqlens_q": (shape[0] + 1,),
        "logits_indices": (inputs.logits_indices.size,),
        "is_captured": (1,),
    }
    check_form(inputs, per_token | per_row | others)


def _check_lengths(inputs: PagedInput) -> None:
    """The rows cover the batch, each has a new token, and context = cached + new tokens."""
    bounds, tokens = inputs.cu_seqlens_q, inputs.token_ids.size
    first, last = int(bounds[0]), int(bounds[-1])
    incomplete = (first, last) != (0, tokens)
    refuse_if(incomplete, Constraint.LENGTHS, first=first, last=last, tokens=tokens)
    computed, cached, context = np.diff(bounds), inputs.cached_lens, inputs.context_lens
    refuse_where(computed < 1, Constraint.EMPTY_QUERY, computed=computed, cached=cached)
    wrong = (cached < 0) | (cached + computed != context)
    refuse_where(wrong, Constraint.LENGTHS, cached=cached, computed=computed, context=context)
    places = inputs.logits_indices
    disordered = np.diff(places, prepend=-1) < 1
    wrong = disordered | (places < 0) | (places >= tokens)
    refuse_where(wrong, Constraint.SAMPLED, ("sample",), place=places, tokens=tokens)


def _check_limits(shape: PagedShape, inputs: PagedInput) -> None:
    """Rows and tokens are within the limits; a captured decode has a captured size."""
    rows, tokens = len(inputs.cached_lens), inputs.token_ids.size
    most = shape.max_num_seqs
    refuse_if(rows > most, Constraint.BATCH_LIMIT, rows=rows, max_num_seqs=most)
    most = shape.max_num_batched_tokens
    refuse_if(tokens > most, Constraint.BATCH_LIMIT, tokens=tokens, max_num_batched_tokens=most)
    if inputs.is_captured[0]:
        largest = max(shape.captured_sizes, default=0)
        wrong = tokens != rows or rows > largest
        refuse_if(wrong, Constraint.CAPTURED_SIZE, rows=rows, tokens=tokens, largest=largest)


def _check_table(shape: PagedShape, inputs: PagedInput) -> None:
    """Each row of the table has blocks of the pool, then -1, and enough blocks for the context."""
    table, axes = inputs.block_tables, ("row", "column")
    is_block = (table >= shape.first_block) & (table < shape.end_block)
    is_behind_nothing = np.zeros_like(is_block)
    is_behind_nothing[:, 1:] = table[:, :-1] == NO_BLOCK
    wrong = np.where(is_block, is_behind_nothing, table != NO_BLOCK)
    last = shape.end_block - 1
    refuse_where(wrong, Constraint.TABLE, axes, block=table, last_block=last)
    blocks, context = is_block.sum(axis=1), inputs.context_lens
    missing = blocks * shape.block_size < context
    refuse_where(missing, Constraint.TABLE_LENGTH, blocks=blocks, context=context)


def _check_positions(shape: PagedShape, inputs: PagedInput) -> None:
    """Positions continue after the cached tokens and are less than the model length."""
    positions, length = inputs.positions, shape.max_model_len
    starts = inputs.cached_lens - inputs.cu_seqlens_q[:-1]
    expected = np.arange(positions.size) + np.repeat(starts, np.diff(inputs.cu_seqlens_q))
    wrong, axes = positions != expected, ("token",)
    refuse_where(wrong, Constraint.NEXT_POSITION, axes, position=positions, expected=expected)
    beyond = positions >= length
    refuse_where(beyond, Constraint.MODEL_LENGTH, axes, position=positions, max_model_len=length)


def _check_slots(shape: PagedShape, inputs: PagedInput, batch: PagedBatch) -> None:
    """Every token is written to its offset in the block that its row's table has for it."""
    slots, size, axes = inputs.slot_mapping, shape.block_size, ("token",)
    first, end = shape.first_block * size, shape.end_block * size
    beyond = (slots < first) | (slots >= end)
    refuse_where(beyond, Constraint.SLOT, axes, slot=slots, first_slot=first, last_slot=end - 1)
    blocks, own = slots // size, batch.blocks
    wrong = blocks != own
    refuse_where(wrong, Constraint.WRITE_OUTSIDE, axes, slot=slots, block=blocks, expected=own)
    offset, expected = slots % size, batch.slots
    wrong = offset != expected
    refuse_where(wrong, Constraint.WRITE_OFFSET, axes, slot=slots, offset=offset, expected=expected)


def _check_held(shape: PagedShape, inputs: PagedInput, batch: PagedBatch) -> None:
    """A written block is in no other row's table, unless that row only reads it.

    With `shares_unwritten` several rows may write a block, but only equal tokens to one slot.
    """
    whole = inputs.cached_lens[:, np.newaxis] // shape.block_size
    table = inputs.block_tables
    is_own = (np.arange(table.shape[1]) >= whole) & (table != NO_BLOCK)
    times = np.bincount(table[is_own])[batch.blocks]
    wrong, axes = times > 1, ("token",)
    if shape.shares_unwritten:
        wrong &= _is_written_over(inputs)
    refuse_where(wrong, Constraint.WRITE_HELD, axes, block=batch.blocks, holders=times)


def _is_written_over(inputs: PagedInput) -> Flags:
    """Whether the batch writes another token to the slot of each token; [tokens]."""
    _, places = np.unique(inputs.slot_mapping, return_inverse=True)
    last = np.zeros_like(inputs.token_ids)
    last[places] = inputs.token_ids
    return np.asarray(last[places] != inputs.token_ids)
