"""The KV cache of the simulated Spyre device: rows of whole blocks, padded on the left."""

import numpy as np

from engine.core.model import Words
from engine.spyre.device.contents import BlockContents
from engine.spyre.device.inputs import Tensor
from engine.spyre.device.refusing import Flags
from spec.spyre.state import PADDING_BLOCK


class KVCache(BlockContents):
    """Blocks of `block_size` slots; block 0 is never written."""

    def __init__(self, blocks: int, block_size: int) -> None:
        """`blocks` with block 0 counted; `block_size` in tokens."""
        super().__init__(blocks, block_size)
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
