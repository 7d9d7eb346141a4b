"""Width, padding and tkv of a decode batch, from arrays of row lengths.

Source: spyre, "Left-padding with full blocks" and "Per-request tkv"; the formulas are those of
`spec/spyre/padding.py`, handed the two rows that matter to them.
"""

from engine.core.tensors import Tensor
from spec.spyre.padding import batch_width_blocks, last_block_offset, max_tkv, row_left_padding


def longest_and_furthest(lengths: Tensor, block_size: int) -> list[int]:
    """The largest length, and one that reaches furthest into its last block; at least one row."""
    furthest = last_block_offset(lengths, block_size).argmax()
    return [int(lengths.max()), int(lengths[furthest])]


def layout(lengths: Tensor, block_size: int) -> tuple[Tensor, int]:
    """Left padding of every row and the batch's tkv; `lengths` count this step's token."""
    decisive = longest_and_furthest(lengths, block_size)
    width = batch_width_blocks(decisive, block_size)
    return row_left_padding(lengths, width, block_size), int(max_tkv(decisive, block_size))
