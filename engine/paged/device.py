"""The paged device: it gets tensors, keeps the KV cache and computes the tokens.

It is the simulated device without Spyre's restrictions: rows of any number of tokens, prefills,
decodes and drafts in one batch. Its model reads what block tables and slots point at, so that a
wrong one changes the tokens, where it is not refused. `engine.core.faults` has
everything that is refused. Source: nano-vllm, chapter 9; vllm-v1, "Memory Management & Preemption",
"Prefix Caching" and "Speculative Decoding"; vllm-v0, "Swapping Functions".
"""

import numpy as np

from engine.core.cache import BlockContents
from engine.core.faults import Constraint, ConstraintError, refuse_where
from engine.core.tensors import Tensor, Words, cached_values, sampled_tokens
from engine.paged.batch import PagedBatch, checked_batch
from engine.paged.inputs import PagedInput, PagedShape, Transfers
from engine.paged.transfers import check_transfers


class PagedDevice:
    """A device with an empty cache of this shape.

    It knows nothing of requests: only their tables distinguish rows. A step that is refused
    leaves no trace. A step may be run again with the same tensors.
    """

    def __init__(self, shape: PagedShape) -> None:
        """`shape` gives the block size, the pools and the limits."""
        self._shape = shape
        # The blocks of the CPU stand behind those of the GPU.
        self._cache = PagedCache(shape.end_block + shape.num_cpu_blocks, shape.block_size)
        self._was_swapped = np.zeros(shape.end_cpu_block, np.bool_)

    def compute(self, given: PagedInput) -> Tensor:
        """Compute the new tokens of every row: the sampled tokens [samples].

        Raises:
            ConstraintError: the device cannot do this step, or a row would read unwritten slots.
        """
        batch = checked_batch(self._shape, given)
        words = cached_values(given.token_ids, given.positions)
        written = batch.blocks[batch.is_first]
        before = self._cache.saved(written)
        try:
            self._write(batch, words, given)
            attended = self._cache.attend(batch, given)
        except ConstraintError:
            self._cache.restore(written, before)
            raise
        return sampled_tokens(attended[given.logits_indices])

    def _write(self, batch: PagedBatch, words: Words, given: PagedInput) -> None:
        """Write the words; a slot that several rows write to, which have one token there, once."""
        positions, drafts = given.positions, self._shape.num_speculative_tokens
        if self._shape.shares_unwritten:
            _, places = np.unique(given.slot_mapping, return_index=True)
            batch, words, positions = batch.taken(places), words[places], positions[places]
        self._cache.write(batch, words, positions, drafts)

    def transfer(self, given: Transfers) -> None:
        """Copy blocks out to the CPU and in from it, then on the GPU, before a step computes.

        Raises:
            ConstraintError: the device cannot do this; nothing was copied.
        """
        check_transfers(self._shape, given, self._was_swapped)
        cpu = self._shape.num_blocks
        self._copy(given.swaps_out, to=cpu)
        self._copy(given.swaps_in, start=cpu)
        self._copy(given.copies)
        self._was_swapped[given.swaps_out[:, 1]] = True

    def _copy(self, pairs: Tensor, start: int = 0, to: int = 0) -> None:
        """Copy blocks all at once; `start` and `to`: where in the cache either pool begins."""
        sources, targets = pairs.T
        self._cache.restore(targets + to, self._cache.saved(sources + start))

    def load(self, blocks: Tensor, other: "PagedDevice", theirs: Tensor) -> None:
        """Copy blocks of another device into these, as a connector brings what others computed."""
        self._cache.restore(blocks, other._cache.saved(theirs))


class PagedCache(BlockContents):
    """The KV cache: rows of any length, some tokens of which are new.

    What a block holds ends with its newest token.
    """

    def write(self, batch: PagedBatch, words: Words, positions: Tensor, drafts: int) -> None:
        """Write the words [tokens] to their slots; what is behind each block is left to `attend`.

        `drafts`: slots at the end of a block that may be written over with other words.

        Raises:
            ConstraintError: a slot before the first was never written, or another word would be
                written over.
        """
        running = self._running_sums(batch, words)
        self._refuse_lost(batch, running, drafts)
        blocks, slots = batch.blocks, batch.slots
        self._running[blocks, slots + 1] = running
        last = np.roll(batch.is_first, -1)
        self._filled[blocks[last]] = slots[last] + 1
        self._sums[blocks[last]] = running[last]
        anew = slots == 0
        self._first_position[blocks[anew]] = positions[anew]

    def _refuse_lost(self, batch: PagedBatch, running: Words, drafts: int) -> None:
        """Refuse to leave a slot out, and to write over a word that a row may still read."""
        blocks, slots, axes = batch.blocks, batch.slots, ("token",)
        filled = self._filled.take(blocks)
        gap = batch.is_first & (slots > filled)
        refuse_where(gap, Constraint.WRITE_GAP, axes, block=blocks, slot=slots, written=filled)
        is_anew = (slots == 0)[batch.is_first][batch.is_first.cumsum() - 1]
        is_kept = ~is_anew & (slots < filled - drafts)
        lost = is_kept & (self._running[blocks, slots + 1] != running)
        refuse_where(lost, Constraint.REWRITE, axes, block=blocks, slot=slots, written=filled)

    def _running_sums(self, batch: PagedBatch, words: Words) -> Words:
        """The sum of each token's block up to and with it; [tokens]."""
        through, first = words.cumsum(), batch.is_first
        before = self._running[batch.blocks[first], batch.slots[first]]
        # In each block: what it held before the first new token instead of what the batch did.
        shift = before - (through - words)[first]
        sums: Words = through + shift[first.cumsum() - 1]
        return sums

    def attend(self, batch: PagedBatch, given: PagedInput) -> Words:
        """The sum of the words that each token attends to, itself included; [tokens].

        Blocks that were begun anew are noted as standing behind what their row has before them.

        Raises:
            ConstraintError: a slot was not written, stands elsewhere or follows other tokens.
        """
        starts = np.arange(given.block_tables.shape[1]) * self._block_size
        slots = (given.context_lens[:, np.newaxis] - starts).clip(0, self._block_size)
        is_read = slots > 0
        table = np.where(is_read, given.block_tables, given.block_tables[:, :1])
        sums = np.where(is_read, self._sums.take(table), np.uint64(0))
        behind = sums.cumsum(axis=1) - sums
        anew = batch.slots == 0
        self._behind[batch.blocks[anew]] = behind[batch.rows[anew], batch.columns[anew]]
        self._refuse_unreadable(("row", "column"), table, slots, starts, behind)
        own = self._running[batch.blocks, batch.slots + 1]
        attended: Words = behind[batch.rows, batch.columns] + own
        return attended
