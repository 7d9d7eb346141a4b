"""The simulated Spyre device: it gets tensors, keeps the KV cache and computes the tokens.

Its model reads what the tensors point at, block by block: one wrong slot or stale block changes the
tokens, where it is not refused. `engine.core.faults` has everything that is refused.
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
    """A device with an empty cache of the configured size; satisfies `engine.spyre.device.Device`.

    It knows nothing of requests: only their tables distinguish rows. A step that is refused
    leaves no trace. A step may be run again with the same tensors.
    """

    def __init__(self, config: SpyreConfig) -> None:
        """`config` gives block and chunk sizes, the pool and the limits."""
        self._config = config
        self._cache = KVCache(config.pool_blocks + 1, config.block_size)
        self._checked: CheckedTable | None = None
        # The sums of all blocks of that table but the last of each row, as long as they stand:
        # decode steps with the same table write to the last ones only.
        self._behind: Words | None = None

    def prefill(self, given: PrefillInput) -> Tensor:
        """Compute a chunk: the sampled token [1] if it is the last one, else an empty tensor.

        Raises:
            ConstraintError: the hardware cannot do this step, or a row would read unwritten slots.
        """
        self._behind = None
        layout = checked_chunk(self._config, given)
        words = cached_values(given.token_ids, given.positions) * layout.is_real
        running = words.reshape(-1, self._config.block_size).cumsum(axis=1)
        earlier = given.block_table[:, : layout.columns]
        before = self._cache.whole_blocks(earlier, given.left_padding)
        through = before + running[:, -1].cumsum()
        behind = through - running[:, -1]
        self._check_cached(layout, running[:, -1], behind)
        own = layout.is_written
        self._cache.fill(
            layout.blocks[own], layout.tokens[own], running[own], layout.positions[own], behind[own]
        )
        return sampled_tokens(through[-1:]) if given.is_last[0] else NO_TOKENS

    def _check_cached(self, layout: ChunkLayout, sums: Words, behind: Words) -> None:
        """Blocks of the chunk that are read and not written hold exactly its tokens."""
        kept = ~layout.is_written & (layout.tokens > 0)
        blocks, tokens, positions = layout.blocks[kept], layout.tokens[kept], layout.positions[kept]
        found = self._cache.first_slots("index", blocks, tokens, positions, behind[kept])
        wrong = found != sums[kept]
        refuse_where(wrong, Constraint.READ_CONTENT, ("index",), block=blocks, position=positions)

    def decode(self, given: DecodeInput) -> Tensor:
        """Compute one token of every row: the sampled tokens [rows].

        Raises:
            ConstraintError: the hardware cannot do this step, or a row would read unwritten slots.
        """
        checked = check_decode(self._config, given, self._checked)
        if checked is None or checked is not self._checked:
            self._behind = None
        self._checked = checked
        blocks, slots = given.block_table[:, -1], given.slot_mapping % self._config.block_size
        positions = given.positions - slots
        behind = self._behind
        if behind is None:
            behind = self._cache.whole_blocks(given.block_table[:, :-1], given.left_padding)
            self._behind = behind
        running = self._cache.first_slots("row", blocks, slots, positions, behind)
        running = running + cached_values(given.token_ids, given.positions)
        wrong = self._cache.replaces_another(blocks, slots, running)
        refuse_where(wrong, Constraint.OVERWRITE, block=blocks, slot=slots)
        self._cache.append(blocks, slots, running, positions, behind)
        return sampled_tokens(behind + running)


class KVCache(BlockContents):
    """The KV cache: rows of whole blocks, padded on the left; block 0 is never written."""

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
