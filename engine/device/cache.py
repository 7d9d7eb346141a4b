"""The KV cache of the simulated device: what its slots hold, kept as running sums of blocks.

A row attends to all slots of all its blocks but the last. Sums of whole blocks are therefore all
that a step reads, besides the last block of each row; `tests/engine/device` holds this equal to
attention slot by slot.
"""

import numpy as np

from engine.device.constraints import Constraint
from engine.device.inputs import Tensor
from engine.device.model import Words
from engine.device.refusing import Flags, refuse_where
from spec.state import PADDING_BLOCK


class KVCache:
    """Blocks of `block_size` slots; block 0 is never written.

    - `running` [blocks, block_size + 1]: sum of the words in a block's first k slots, by k.
    - `sums` [blocks]: sum of the words in all written slots of a block. It stands in `running` too,
      but every step reads it of all blocks of all rows, so it is kept close together.
    - `filled` [blocks]: slots that were written, always the first ones.
    - `first_position` [blocks]: real position of the first slot's token.
    - `behind` [blocks]: sum of all words before the block in the row that wrote it. Keys and values
      depend on all tokens before them, so the block is good only for rows with the same ones.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        """`blocks` with block 0 counted; `block_size` in tokens."""
        self._block_size = block_size
        self._running = np.zeros((blocks, block_size + 1), dtype=np.uint64)
        self._sums = np.zeros(blocks, dtype=np.uint64)
        self._filled = np.zeros(blocks, dtype=np.int64)
        self._first_position = np.zeros(blocks, dtype=np.int64)
        self._behind = np.zeros(blocks, dtype=np.uint64)
        # So that padding needs no exception: as if full of nothing, where the row begins.
        self._filled[PADDING_BLOCK] = block_size

    def whole_blocks(self, table: Tensor, left_padding: Tensor) -> Words:
        """The sum [rows] of all words in a table [rows, columns] of full blocks.

        `left_padding` [rows] in tokens; the table has block 0 there.

        Raises:
            ConstraintError: a block is not full, stands elsewhere or follows other tokens.
        """
        sums = self._sums.take(table)
        through = sums.cumsum(axis=1)
        padded = np.arange(table.shape[1]) * self._block_size
        positions = np.maximum(padded - left_padding[:, np.newaxis], 0)
        axes = ("row", "column")
        self._refuse_unreadable(axes, table, self._block_size, positions, through - sums)
        return through[:, -1] if table.shape[1] else np.zeros(len(table), dtype=np.uint64)

    def first_slots(
        self, axis: str, blocks: Tensor, slots: Tensor, positions: Tensor, behind: Words
    ) -> Words:
        """The sum of the words in the first `slots` slots of each of the blocks.

        All of one shape: `positions` where each block begins, `behind` the sum of all before it.
        Of a block with no slot to read nothing is asked. `axis` names the axis in a refusal.

        Raises:
            ConstraintError: a slot was not written, stands elsewhere or follows other tokens.
        """
        self._refuse_unreadable((axis,), blocks, slots, positions, behind)
        return self._running[blocks, slots]

    def _refuse_unreadable(
        self,
        axes: tuple[str, ...],
        blocks: Tensor,
        slots: Tensor | int,
        positions: Tensor,
        behind: Words,
    ) -> None:
        """Refuse to read the first `slots` of blocks that do not hold what is expected there."""
        filled = self._filled.take(blocks)
        refuse_where(
            filled < slots,
            Constraint.READ_UNWRITTEN,
            axes,
            block=blocks,
            read=slots,
            written=filled,
        )
        is_read = slots > 0
        found = self._first_position.take(blocks)
        refuse_where(
            is_read & (found != positions),
            Constraint.READ_POSITION,
            axes,
            block=blocks,
            position=positions,
            written_for=found,
        )
        refuse_where(
            is_read & (self._behind.take(blocks) != behind),
            Constraint.READ_CONTENT,
            axes,
            block=blocks,
            position=positions,
        )

    def replaces_another(self, blocks: Tensor, slots: Tensor, running: Words) -> Flags:
        """Where `append` would write over a word that is not the same.

        Not so for the first slot, with which a block begins anew.
        """
        is_written = (slots > 0) & (slots < self._filled.take(blocks))
        differs: Flags = self._running[blocks, slots + 1] != running
        return is_written & differs

    def append(
        self, blocks: Tensor, slots: Tensor, running: Words, positions: Tensor, behind: Words
    ) -> None:
        """Write one slot of each block; `running` is the block's sum up to and with it."""
        self._running[blocks, slots + 1] = running
        self._hold(blocks, slots + 1, running, positions, behind)

    def fill(
        self, blocks: Tensor, slots: Tensor, running: Words, positions: Tensor, behind: Words
    ) -> None:
        """Write the first `slots` of each block; `running` [blocks, block_size] is its sums."""
        self._running[blocks, 1:] = running
        self._hold(blocks, slots, self._running[blocks, slots], positions, behind)

    def _hold(
        self, blocks: Tensor, filled: Tensor, sums: Words, positions: Tensor, behind: Words
    ) -> None:
        self._filled[blocks] = filled
        self._sums[blocks] = sums
        self._first_position[blocks] = positions
        self._behind[blocks] = behind
