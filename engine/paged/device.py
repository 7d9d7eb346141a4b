"""The paged device: it takes tensors, keeps the KV cache and samples tokens.

It is a simulated device without Spyre's restrictions: a batch may mix prefills, decodes and drafts
in rows of any length. Its model reads the slots that the block tables point to, so a wrong table
is refused or changes the tokens. `engine.core.faults` lists the constraints.

Source: nano-vllm, chapter 9; vllm-v1, "Memory Management & Preemption", "Prefix Caching" and
"Speculative Decoding"; vllm-v0, "Swapping Functions".
"""

import numpy as np

from engine.core.cache import BlockContents
from engine.core.faults import Constraint, ConstraintError, refuse_where
from engine.core.tensors import Tensor, Words, cached_values, sampled_tokens
from engine.paged.batch import PagedBatch, checked_batch
from engine.paged.inputs import PagedInput, PagedShape, Transfers
from engine.paged.transfers import check_transfers


class PagedDevice:
    """A paged device with an empty KV cache.

    The device does not know requests: it tells rows apart by their block tables. A refused step
    changes nothing. A step may be run again with the same tensors.
    """

    def __init__(self, shape: PagedShape) -> None:
        """`shape`: block size, pools and limits."""
        self._shape = shape
        # The blocks of the CPU follow those of the GPU.
        self._cache = PagedCache(shape.end_block + shape.num_cpu_blocks, shape.block_size)
        self._was_swapped = np.zeros(shape.end_cpu_block, np.bool_)

    def compute(self, inputs: PagedInput) -> Tensor:
        """Compute the new tokens of every row; returns the sampled tokens [samples].

        Raises:
            ConstraintError: the step breaks a constraint.
        """
        batch = checked_batch(self._shape, inputs)
        words = cached_values(inputs.token_ids, inputs.positions)
        written = batch.blocks[batch.is_first]
        before = self._cache.saved(written)
        try:
            self._write(batch, words, inputs)
            attended = self._cache.attend(batch, inputs)
        except ConstraintError:
            self._cache.restore(written, before)
            raise
        return sampled_tokens(attended[inputs.logits_indices])

    def _write(self, batch: PagedBatch, words: Words, inputs: PagedInput) -> None:
        """Write the words; a slot that several rows write to is written once."""
        positions, drafts = inputs.positions, self._shape.num_speculative_tokens
        if self._shape.shares_unwritten:
            _, places = np.unique(inputs.slot_mapping, return_index=True)
            batch, words, positions = batch.taken(places), words[places], positions[places]
        self._cache.write(batch, words, positions, drafts)

    def transfer(self, inputs: Transfers) -> None:
        """Swap blocks out and in, then copy blocks on the GPU, before a step computes.

        Raises:
            ConstraintError: a transfer breaks a constraint; nothing was copied.
        """
        check_transfers(self._shape, inputs, self._was_swapped)
        cpu = self._shape.num_blocks
        self._copy(inputs.swaps_out, to=cpu)
        self._copy(inputs.swaps_in, start=cpu)
        self._copy(inputs.copies)
        self._was_swapped[inputs.swaps_out[:, 1]] = True

    def _copy(self, pairs: Tensor, start: int = 0, to: int = 0) -> None:
        """Copy all pairs simultaneously; `start`, `to`: offsets of the two pools in the cache."""
        sources, targets = pairs.T
        self._cache.restore(targets + to, self._cache.saved(sources + start))

    def load(self, blocks: Tensor, other: "PagedDevice", theirs: Tensor) -> None:
        """Copy the blocks `theirs` of another device to `blocks`, as a KV connector does."""
        self._cache.restore(blocks, other._cache.saved(theirs))


class PagedCache(BlockContents):
    """The KV cache of a paged device.

    A write to a block discards the tokens behind the last written one.
    """

    def write(self, batch: PagedBatch, words: Words, positions: Tensor, drafts: int) -> None:
        """Write the words [tokens] to their slots; `attend` updates the sums behind the blocks.

        `drafts`: number of slots at the end of a block that may be overwritten with other words.

        Raises:
            ConstraintError: a slot before the first one is not written, or a slot that is not a
                draft would get another word.
        """
        running = self._running_sums(batch, words)
        self._refuse_lost(batch, running, drafts)
        blocks, slots = batch.blocks, batch.slots
        self._running[blocks, slots + 1] = running
        last = np.roll(batch.is_first, -1)
        self._filled[blocks[last]] = slots[last] + 1
        self._sums[blocks[last]] = running[last]
        is_start = slots == 0
        self._first_position[blocks[is_start]] = positions[is_start]

    def _refuse_lost(self, batch: PagedBatch, running: Words, drafts: int) -> None:
        """Refuse a gap before a written slot, and another word in a slot that is not a draft."""
        blocks, slots, axes = batch.blocks, batch.slots, ("token",)
        filled = self._filled.take(blocks)
        gap = batch.is_first & (slots > filled)
        refuse_where(gap, Constraint.WRITE_GAP, axes, block=blocks, slot=slots, written=filled)
        is_rewritten = (slots == 0)[batch.is_first][batch.is_first.cumsum() - 1]
        is_kept = ~is_rewritten & (slots < filled - drafts)
        lost = is_kept & (self._running[blocks, slots + 1] != running)
        refuse_where(lost, Constraint.REWRITE, axes, block=blocks, slot=slots, written=filled)

    def _running_sums(self, batch: PagedBatch, words: Words) -> Words:
        """The sum of the words in each token's block up to and including the token; [tokens]."""
        through, first = words.cumsum(), batch.is_first
        before = self._running[batch.blocks[first], batch.slots[first]]
        # Per block: replace the batch's sum before the first new token by the block's own.
        shift = before - (through - words)[first]
        sums: Words = through + shift[first.cumsum() - 1]
        return sums

    def attend(self, batch: PagedBatch, inputs: PagedInput) -> Words:
        """The sum of the words that each token attends to, itself included; [tokens].

        Blocks that are written from their first slot on get the sum of their row before them.

        Raises:
            ConstraintError: a slot was not written, or its block was written for another position
                or behind other tokens.
        """
        starts = np.arange(inputs.block_tables.shape[1]) * self._block_size
        slots = (inputs.context_lens[:, np.newaxis] - starts).clip(0, self._block_size)
        is_read = slots > 0
        table = np.where(is_read, inputs.block_tables, inputs.block_tables[:, :1])
        sums = np.where(is_read, self._sums.take(table), np.uint64(0))
        behind = sums.cumsum(axis=1) - sums
        is_start = batch.slots == 0
        self._behind[batch.blocks[is_start]] = behind[batch.rows[is_start], batch.columns[is_start]]
        self._refuse_unreadable(("row", "column"), table, slots, starts, behind)
        own = self._running[batch.blocks, batch.slots + 1]
        attended: Words = behind[batch.rows, batch.columns] + own
        return attended
