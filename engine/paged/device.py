"""The paged device: it gets tensors, keeps the KV cache and computes the tokens.

It is the simulated device without Spyre's restrictions: rows of any number of tokens, prefills,
decodes and drafts in one batch. Its model reads what block tables and slots point at, so that a
wrong one changes the tokens, where it is not refused. `engine.spyre.device.constraints` has
everything that is refused. Source: nano-vllm, chapter 9; vllm-v1, "Memory Management & Preemption",
"Prefix Caching" and "Speculative Decoding".
"""

from engine.core.faults import ConstraintError
from engine.core.model import cached_values, sampled_tokens
from engine.paged.batch import checked_batch
from engine.paged.cache import PagedCache
from engine.paged.inputs import PagedInput, PagedShape
from engine.spyre.device.inputs import Tensor


class PagedDevice:
    """A device with an empty cache of this shape.

    It knows nothing of requests: rows are told apart by their tables only. A step that is refused
    leaves no trace. A step may be run again with the same tensors.
    """

    def __init__(self, shape: PagedShape) -> None:
        """`shape` gives the block size, the pool and the limits."""
        self._shape = shape
        self._cache = PagedCache(shape.end_block, shape.block_size)

    def compute(self, given: PagedInput) -> Tensor:
        """Compute the new tokens of every row: the sampled tokens [samples].

        Raises:
            ConstraintError: the device cannot do this step, or it would read what nobody wrote.
        """
        batch = checked_batch(self._shape, given)
        words = cached_values(given.token_ids, given.positions)
        written = batch.blocks[batch.is_first]
        before = self._cache.saved(written)
        try:
            drafts = self._shape.num_speculative_tokens
            self._cache.write(batch, words, given.positions, drafts)
            attended = self._cache.attend(batch, given)
        except ConstraintError:
            self._cache.restore(written, before)
            raise
        return sampled_tokens(attended[given.logits_indices])

    def load(self, blocks: Tensor, other: "PagedDevice", theirs: Tensor) -> None:
        """Copy blocks of another device into these, as a connector brings what others computed."""
        self._cache.restore(blocks, other._cache.saved(theirs))
