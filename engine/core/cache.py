"""What the blocks of a simulated KV cache hold, however tokens are laid out in them.

Kept as running sums: a row attends to whole blocks but for its last, so sums of blocks are all that
a step reads besides. `tests/engine/device` holds this equal to attention slot by slot.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.core.faults import Constraint, refuse_where
from engine.core.tensors import Tensor, Words

Saved = tuple[NDArray[Any], ...]  # one array for each that `BlockContents` keeps


class BlockContents:
    """Blocks of `block_size` slots.

    - `running` [blocks, block_size + 1]: sum of the words in a block's first k slots, by k.
    - `sums` [blocks]: sum of the words in all written slots of a block. It stands in `running` too,
      but every step reads it of all blocks of all rows, so it is kept close together.
    - `filled` [blocks]: slots that were written, always the first ones.
    - `first_position` [blocks]: real position of the first slot's token.
    - `behind` [blocks]: sum of all words before the block in the row that wrote it. Keys and values
      depend on all tokens before them, so the block is good only for rows with the same ones.
    """

    def __init__(self, blocks: int, block_size: int) -> None:
        """`blocks` from 0 on, all empty; `block_size` in tokens."""
        self._block_size = block_size
        self._running = np.zeros((blocks, block_size + 1), dtype=np.uint64)
        self._sums = np.zeros(blocks, dtype=np.uint64)
        self._filled = np.zeros(blocks, dtype=np.int64)
        self._first_position = np.zeros(blocks, dtype=np.int64)
        self._behind = np.zeros(blocks, dtype=np.uint64)

    def saved(self, blocks: Tensor) -> Saved:
        """A copy of what these blocks hold."""
        return tuple(held[blocks] for held in self._arrays())

    def restore(self, blocks: Tensor, saved: Saved) -> None:
        """Let these blocks hold what was saved of as many."""
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
        """Refuse to read the first `slots` of blocks that do not hold what is expected there."""
        filled, found = self._filled.take(blocks), self._first_position.take(blocks)
        is_read = slots > 0
        missing = filled < slots
        elsewhere = is_read & (found != positions)
        other = is_read & (self._behind.take(blocks) != behind)
        if not np.count_nonzero(missing | elsewhere | other):
            return
        place = {"block": blocks, "position": positions}
        refuse_where(
            missing, Constraint.READ_UNWRITTEN, axes, block=blocks, read=slots, written=filled
        )
        refuse_where(elsewhere, Constraint.READ_POSITION, axes, **place, written_for=found)
        refuse_where(other, Constraint.READ_CONTENT, axes, **place)
