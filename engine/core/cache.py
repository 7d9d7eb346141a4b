"""Contents of the blocks of a simulated KV cache, for any layout of tokens in them.

Blocks are kept as running sums of their words. A row attends to all slots of its blocks except in
the last block, so a step reads one sum a block and one running sum a row. `tests/engine/device`
compares this with attention slot by slot.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.faults import Constraint, refuse_where
from engine.core.tensors import Tensor, Words

Saved = tuple[NDArray[Any], ...]  # the arrays of `BlockContents`, in its order


class BlockContents:
    """Blocks of `block_size` slots.

    - `running` [blocks, block_size + 1]: sum of the words in a block's first k slots, by k.
    - `sums` [blocks]: sum of the words in all written slots of a block. `running` has this sum,
      too, but every step reads it for all blocks of all rows, so a compact copy is faster.
    - `filled` [blocks]: number of written slots, which are always the first ones.
    - `first_position` [blocks]: real position of the first slot's token.
    - `behind` [blocks]: sum of all words before the block in the row that wrote it. Keys and values
      depend on all earlier tokens, so only rows with the same earlier tokens may read the block.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        """Blocks 0 to `blocks` - 1, all empty; `block_size` in tokens."""
        self._block_size = block_size
        self._running = np.zeros((blocks, block_size + 1), dtype=np.uint64)
        self._sums = np.zeros(blocks, dtype=np.uint64)
        self._filled = np.zeros(blocks, dtype=np.int64)
        self._first_position = np.zeros(blocks, dtype=np.int64)
        self._behind = np.zeros(blocks, dtype=np.uint64)

    def saved(self, blocks: Tensor) -> Saved:
        """A copy of the contents of these blocks."""
        return tuple(held[blocks] for held in self._arrays())

    def restore(self, blocks: Tensor, saved: Saved) -> None:
        """Overwrite these blocks with the saved contents of as many blocks."""
        for held, before in zip(self._arrays(), saved, strict=True):
            held[blocks] = before

    def _arrays(self) -> Saved:
        return self._running, self._sums, self._filled, self._first_position, self._behind

    def _refuse_unreadable(
        self,
        axes: tuple[str, ...],
        blocks: Tensor,
        slots: Tensor | int,
        positions: Tensor,
        behind: Words,
    ) -> None:
        """Refuse a read of the first `slots` of each block if the contents are not as expected.

        `positions`: expected position of the block's first token. `behind`: expected sum before the
        block.

        Raises:
            ConstraintError: a slot was not written, or the block was written for another position
                or behind other tokens.
        """
        filled, positions_held = self._filled.take(blocks), self._first_position.take(blocks)
        is_read = slots > 0
        missing = filled < slots
        elsewhere = is_read & (positions_held != positions)
        other = is_read & (self._behind.take(blocks) != behind)
        if not np.count_nonzero(missing | elsewhere | other):
            return
        place = {"block": blocks, "position": positions}
        refuse_where(
            missing, Constraint.READ_UNWRITTEN, axes, block=blocks, read=slots, written=filled
        )
        refuse_where(elsewhere, Constraint.READ_POSITION, axes, **place, written_for=positions_held)
        refuse_where(other, Constraint.READ_CONTENT, axes, **place)
