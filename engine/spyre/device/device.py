"""The simulated Spyre device: it takes tensors, keeps the KV cache and samples tokens.

Its model reads the blocks that the tensors point to, so a wrong slot or a stale block is refused or
changes the tokens. `engine.core.faults` lists the constraints.

Source: spyre, "Padding", "Prefill padding", "Decode padding" and "Prefix caching".
"""

import numpy as np

from engine.core.cache import BlockContents
from engine.core.faults import Constraint, refuse_where
from engine.core.tensors import NO_TOKENS, Flags, Tensor, Words, cached_values, sampled_tokens
from engine.spyre.device.checks import (
    CheckedTable,
    ChunkLayout,
    check_decode,
    checked_chunk,
)
from engine.spyre.device.inputs import DecodeInput, PrefillInput
from spec.spyre.config import SpyreConfig
from spec.spyre.state import PADDING_BLOCK


class SpyreDevice:
    """A device with an empty KV cache; implements `engine.spyre.device.Device`.

    The device does not know requests: it tells rows apart by their block tables. A refused step
    changes nothing. A step may be run again with the same tensors.
    """

    def __init__(self, config: SpyreConfig) -> None:
        """`config`: block and chunk sizes, pool and limits."""
        self._config = config
        self._cache = KVCache(config.pool_blocks + 1, config.block_size)
        self._checked: CheckedTable | None = None
        # Sum of each row of that table without its last block, while it is valid: decode steps with
        # the same table write only to the last blocks.
        self._behind: Words | None = None

    def prefill(self, inputs: PrefillInput) -> Tensor:
        """Compute a chunk; returns the sampled token [1] of a last chunk, else an empty tensor.

        Raises:
            ConstraintError: the step breaks a constraint.
        """
        self._behind = None
        layout = checked_chunk(self._config, inputs)
        words = cached_values(inputs.token_ids, inputs.positions) * layout.is_real
        running = words.reshape(-1, self._config.block_size).cumsum(axis=1)
        earlier = inputs.block_table[:, : layout.columns]
        before = self._cache.whole_blocks(earlier, inputs.left_padding)
        through = before + running[:, -1].cumsum()
        behind = through - running[:, -1]
        self._check_cached(layout, running[:, -1], behind)
        own = layout.is_written
        self._cache.fill(
            layout.blocks[own], layout.tokens[own], running[own], layout.positions[own], behind[own]
        )
        return sampled_tokens(through[-1:]) if inputs.is_last[0] else NO_TOKENS

    def _check_cached(self, layout: ChunkLayout, sums: Words, behind: Words) -> None:
        """Check that blocks of the chunk that are not written hold exactly its tokens."""
        kept = ~layout.is_written & (layout.tokens > 0)
        blocks, tokens, positions = layout.blocks[kept], layout.tokens[kept], layout.positions[kept]
        cached = self._cache.first_slots("index", blocks, tokens, positions, behind[kept])
        wrong = cached != sums[kept]
        refuse_where(wrong, Constraint.READ_CONTENT, ("index",), block=blocks, position=positions)

    def decode(self, inputs: DecodeInput) -> Tensor:
        """Compute one token of every row; returns the sampled tokens [rows].

        Raises:
            ConstraintError: the step breaks a constraint.
        """
        checked = check_decode(self._config, inputs, self._checked)
        if checked is None or checked is not self._checked:
            self._behind = None
        self._checked = checked
        blocks, slots = inputs.block_table[:, -1], inputs.slot_mapping % self._config.block_size
        positions = inputs.positions - slots
        behind = self._behind
        if behind is None:
            behind = self._cache.whole_blocks(inputs.block_table[:, :-1], inputs.left_padding)
            self._behind = behind
        running = self._cache.first_slots("row", blocks, slots, positions, behind)
        running = running + cached_values(inputs.token_ids, inputs.positions)
        wrong = self._cache.replaces_another(blocks, slots, running)
        refuse_where(wrong, Constraint.OVERWRITE, block=blocks, slot=slots)
        self._cache.append(blocks, slots, running, positions, behind)
        return sampled_tokens(behind + running)


class KVCache(BlockContents):
    """The KV cache of a Spyre device: left padding is whole blocks; block 0 is never written."""

    def __init__(self, blocks: int, block_size: int) -> None:
        """`blocks`: number of blocks including block 0; `block_size` in tokens."""
        super().__init__(blocks, block_size)
        # Block 0 counts as full of words 0, so that padding needs no special case.
        self._filled[PADDING_BLOCK] = block_size

    def whole_blocks(self, table: Tensor, left_padding: Tensor) -> Words:
        """The sum [rows] of all words in a table [rows, columns] of full blocks.

        `left_padding` [rows] in tokens; the table has block 0 there.

        Raises:
            ConstraintError: a block is not full, or was written for another position or behind
                other tokens.
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

        All tensors have one shape. `positions`: expected position of the block's first token.
        `behind`: expected sum before the block. Blocks with 0 slots are not checked. `axis`: name
        of the axis in an error.

        Raises:
            ConstraintError: a slot was not written, or its block was written for another position
                or behind other tokens.
        """
        self._refuse_unreadable((axis,), blocks, slots, positions, behind)
        return self._running[blocks, slots]

    def replaces_another(self, blocks: Tensor, slots: Tensor, running: Words) -> Flags:
        """Whether `append` would replace a word by another one.

        False for the first slot of a block: a write to it discards the block's contents.
        """
        is_written = (slots > 0) & (slots < self._filled.take(blocks))
        differs: Flags = self._running[blocks, slots + 1] != running
        return is_written & differs

    def append(
        self, blocks: Tensor, slots: Tensor, running: Words, positions: Tensor, behind: Words
    ) -> None:
        """Write one slot of each block; `running`: the block's sum including this slot."""
        self._running[blocks, slots + 1] = running
        self._hold(blocks, slots + 1, running, positions, behind)

    def fill(
        self, blocks: Tensor, slots: Tensor, running: Words, positions: Tensor, behind: Words
    ) -> None:
        """Write the first `slots` of each block; `running` [blocks, block_size]: running sums."""
        self._running[blocks, 1:] = running
        self._hold(blocks, slots, self._running[blocks, slots], positions, behind)

    def _hold(
        self, blocks: Tensor, filled: Tensor, sums: Words, positions: Tensor, behind: Words
    ) -> None:
        self._filled[blocks] = filled
        self._sums[blocks] = sums
        self._first_position[blocks] = positions
        self._behind[blocks] = behind
