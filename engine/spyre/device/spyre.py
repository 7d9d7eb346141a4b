"""The simulated Spyre device: it gets tensors, keeps the KV cache and computes the tokens.

Its model reads what the tensors point at, block by block: one wrong slot or stale block changes the
tokens, where it is not refused. `engine.spyre.device.constraints` has everything that is refused.
Source: spyre, "Padding", "Prefill padding", "Decode padding" and "Prefix caching".
"""

import numpy as np

from engine.core.model import Words, cached_values, sampled_tokens
from engine.spyre.device.cache import KVCache
from engine.spyre.device.constraints import Constraint
from engine.spyre.device.decoding import check_decode, offsets
from engine.spyre.device.inputs import DecodeInput, PrefillInput, Tensor
from engine.spyre.device.prefilling import ChunkLayout, checked_chunk
from engine.spyre.device.refusing import refuse_where
from spec.spyre.config import SpyreConfig

_NO_TOKEN = np.zeros(0, dtype=np.int64)


class SpyreDevice:
    """A device with an empty cache of the configured size; satisfies `engine.spyre.device.Device`.

    It knows nothing of requests: rows are told apart by their tables only. A step that is refused
    leaves no trace. A step may be run again with the same tensors.
    """

    def __init__(self, config: SpyreConfig) -> None:
        """`config` gives block and chunk sizes, the pool and the limits."""
        self._config = config
        self._cache = KVCache(config.pool_blocks + 1, config.block_size)

    def prefill(self, given: PrefillInput) -> Tensor:
        """Compute a chunk: the sampled token [1] if it is the last one, else an empty tensor.

        Raises:
            ConstraintError: the hardware cannot do this step, or it would read what nobody wrote.
        """
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
        return sampled_tokens(through[-1:]) if given.is_last[0] else _NO_TOKEN

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
            ConstraintError: the hardware cannot do this step, or it would read what nobody wrote.
        """
        check_decode(self._config, given)
        blocks, slots = given.block_table[:, -1], offsets(self._config, given.tkv)
        positions = given.positions - slots
        behind = self._cache.whole_blocks(given.block_table[:, :-1], given.left_padding)
        running = self._cache.first_slots("row", blocks, slots, positions, behind)
        running = running + cached_values(given.token_ids, given.positions)
        wrong = self._cache.replaces_another(blocks, slots, running)
        refuse_where(wrong, Constraint.OVERWRITE, block=blocks, slot=slots)
        self._cache.append(blocks, slots, running, positions, behind)
        return sampled_tokens(behind + running)
