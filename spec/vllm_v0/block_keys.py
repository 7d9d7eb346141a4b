"""What a block's content is known by: its tokens, all before them, the adapter, and its depth.

Source: vLLM 0.9.2, which hashes the adapter with the tokens and evicts deep blocks first.
"""

from collections.abc import Sequence
from struct import pack, unpack_from

from spec.core.requests import BlockKey, BlockKeys

_LAYOUT = ">II"  # depth in blocks, adapter


class PrefixKeys(BlockKeys):
    """Keys that differ by adapter, too, and begin with the number of blocks up to their end."""

    def of(self, request_id: str, blocks: int) -> Sequence[BlockKey]:
        """Keys of the sequence's first `blocks` blocks, prompt and sampled tokens alike."""
        lora = self._requests[request_id].lora
        chained = enumerate(super().of(request_id, blocks), start=1)
        return [pack(_LAYOUT, depth, lora) + key for depth, key in chained]


def depth(key: BlockKey) -> int:
    """Blocks of the sequence up to the end of the one with this key."""
    return int(unpack_from(_LAYOUT, key)[0])
