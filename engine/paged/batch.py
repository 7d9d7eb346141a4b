"""What a paged step is refused for by its tensors alone, whatever the cache holds.

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
    """Where the tokens of a checked step lie.

    - `rows`, `columns` [tokens]: the row of each token, and the place of its block in the table.
    - `blocks`, `slots` [tokens]: the block that it is written to, and where in it, from 0.
    - `is_first` [tokens]: whether it is the first that its row writes to its block.
    """

    rows: Tensor
    columns: Tensor
    blocks: Tensor
    slots: Tensor
    is_first: Flags

    @classmethod
    def of(cls, shape: PagedShape, given: PagedInput) -> Self:
        """The places that follow from positions and tables."""
        rows = np.repeat(np.arange(len(given.cached_lens)), np.diff(given.cu_seqlens_q))
        columns, slots = np.divmod(given.positions, shape.block_size)
        is_first = slots == 0
        is_first[given.cu_seqlens_q[:-1]] = True
        return cls(rows, columns, given.block_tables[rows, columns], slots, is_first)

    def taken(self, places: Tensor) -> Self:
        """The tokens at these places of the batch, in the order of the slots that they go to."""
        blocks, slots = self.blocks[places], self.slots[places]
        goes_on = (np.diff(blocks, prepend=-1) == 0) & (np.diff(slots, prepend=-1) == 1)
        return type(self)(self.rows[places], self.columns[places], blocks, slots, ~goes_on)


def checked_batch(shape: PagedShape, given: PagedInput) -> PagedBatch:
    """The places of a step that breaks no constraint.

    Raises:
        ConstraintError: the first constraint that is broken.
    """
    _check_form(given)
    _check_lengths(given)
    _check_limits(shape, given)
    _check_table(shape, given)
    check_tokens("token", given.token_ids, True)
    _check_positions(shape, given)
    batch = PagedBatch.of(shape, given)
    _check_slots(shape, given, batch)
    _check_held(shape, given, batch)
    return batch


def _check_form(given: PagedInput) -> None:
    """A table of at least one row and one block; all else of as many rows or tokens."""
    shape = given.block_tables.shape
    malformed = len(shape) != 2 or 0 in shape
    refuse_if(malformed, Constraint.SHAPE, tensor="block_tables", shape=str(shape))
    rows, tokens = (shape[0],), (given.token_ids.size,)
    per_token = dict.fromkeys(("token_ids", "positions", "slot_mapping"), tokens)
    per_row = dict.fromkeys(("cached_lens", "context_lens"), rows)
    others = {
        "block_tables": shape,
        "cu_seqlens_q": (shape[0] + 1,),
        "logits_indices": (given.logits_indices.size,),
        "is_captured": (1,),
    }
    check_form(given, per_token | per_row | others)


def _check_lengths(given: PagedInput) -> None:
    """The rows make up the batch, each with a token; cached and new tokens are the context."""
    bounds, tokens = given.cu_seqlens_q, given.token_ids.size
    first, last = int(bounds[0]), int(bounds[-1])
    incomplete = (first, last) != (0, tokens)
    refuse_if(incomplete, Constraint.LENGTHS, first=first, last=last, tokens=tokens)
    computed, cached, context = np.diff(bounds), given.cached_lens, given.context_lens
    refuse_where(computed < 1, Constraint.EMPTY_QUERY, computed=computed, cached=cached)
    wrong = (cached < 0) | (cached + computed != context)
    refuse_where(wrong, Constraint.LENGTHS, cached=cached, computed=computed, context=context)
    places = given.logits_indices
    disordered = np.diff(places, prepend=-1) < 1
    wrong = disordered | (places < 0) | (places >= tokens)
    refuse_where(wrong, Constraint.SAMPLED, ("sample",), place=places, tokens=tokens)


def _check_limits(shape: PagedShape, given: PagedInput) -> None:
    """There is room for rows and tokens; a captured decode is as large as it was captured."""
    rows, tokens = len(given.cached_lens), given.token_ids.size
    most = shape.max_num_seqs
    refuse_if(rows > most, Constraint.BATCH_LIMIT, rows=rows, max_num_seqs=most)
    most = shape.max_num_batched_tokens
    refuse_if(tokens > most, Constraint.BATCH_LIMIT, tokens=tokens, max_num_batched_tokens=most)
    if given.is_captured[0]:
        largest = max(shape.captured_sizes, default=0)
        wrong = tokens != rows or rows > largest
        refuse_if(wrong, Constraint.CAPTURED_SIZE, rows=rows, tokens=tokens, largest=largest)


def _check_table(shape: PagedShape, given: PagedInput) -> None:
    """Blocks of the pool, nothing behind them, enough for the context."""
    table, axes = given.block_tables, ("row", "column")
    is_block = (table >= shape.first_block) & (table < shape.end_block)
    is_behind_nothing = np.zeros_like(is_block)
    is_behind_nothing[:, 1:] = table[:, :-1] == NO_BLOCK
    wrong = np.where(is_block, is_behind_nothing, table != NO_BLOCK)
    last = shape.end_block - 1
    refuse_where(wrong, Constraint.TABLE, axes, block=table, last_block=last)
    blocks, context = is_block.sum(axis=1), given.context_lens
    missing = blocks * shape.block_size < context
    refuse_where(missing, Constraint.TABLE_LENGTH, blocks=blocks, context=context)


def _check_positions(shape: PagedShape, given: PagedInput) -> None:
    """Positions go on where the cached tokens end, and lie inside the model's context length."""
    positions, length = given.positions, shape.max_model_len
    starts = given.cached_lens - given.cu_seqlens_q[:-1]
    expected = np.arange(positions.size) + np.repeat(starts, np.diff(given.cu_seqlens_q))
    wrong, axes = positions != expected, ("token",)
    refuse_where(wrong, Constraint.NEXT_POSITION, axes, position=positions, expected=expected)
    beyond = positions >= length
    refuse_where(beyond, Constraint.MODEL_LENGTH, axes, position=positions, max_model_len=length)


def _check_slots(shape: PagedShape, given: PagedInput, batch: PagedBatch) -> None:
    """Every token goes to its place in the block that its row's table has for it."""
    slots, size, axes = given.slot_mapping, shape.block_size, ("token",)
    first, end = shape.first_block * size, shape.end_block * size
    beyond = (slots < first) | (slots >= end)
    refuse_where(beyond, Constraint.SLOT, axes, slot=slots, first_slot=first, last_slot=end - 1)
    blocks, own = slots // size, batch.blocks
    wrong = blocks != own
    refuse_where(wrong, Constraint.WRITE_OUTSIDE, axes, slot=slots, block=blocks, expected=own)
    offset, expected = slots % size, batch.slots
    wrong = offset != expected
    refuse_where(wrong, Constraint.WRITE_OFFSET, axes, slot=slots, offset=offset, expected=expected)


def _check_held(shape: PagedShape, given: PagedInput, batch: PagedBatch) -> None:
    """A row with a written block in its table writes it, or finds all of it in the cache.

    Where blocks are shared unwritten, rows may write one block, but no two tokens to one slot.
    """
    whole = given.cached_lens[:, np.newaxis] // shape.block_size
    table = given.block_tables
    is_own = (np.arange(table.shape[1]) >= whole) & (table != NO_BLOCK)
    times = np.bincount(table[is_own])[batch.blocks]
    wrong, axes = times > 1, ("token",)
    if shape.shares_unwritten:
        wrong &= _is_written_over(given)
    refuse_where(wrong, Constraint.WRITE_HELD, axes, block=batch.blocks, holders=times)


def _is_written_over(given: PagedInput) -> Flags:
    """Whether another token of the batch goes to the slot of each; [tokens]."""
    _, places = np.unique(given.slot_mapping, return_inverse=True)
    last = np.zeros_like(given.token_ids)
    last[places] = given.token_ids
    return np.asarray(last[places] != given.token_ids)
