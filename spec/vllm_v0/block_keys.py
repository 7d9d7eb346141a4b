"""The key of a block's content: its tokens, all before them, the adapter, and its depth.

Source: vLLM 0.9.2, which hashes the adapter with the tokens and evicts deep blocks first.
"""

from struct import calcsize, pack, unpack_from

from spec.core.requests import BlockKey, BlockKeys, Request

_LAYOUT = ">II"  # depth in blocks, adapter


class PrefixKeys(BlockKeys):
    """Keys that differ by adapter, too, and begin with the number of blocks up to their end."""

    def root(self, request: Request) -> BlockKey:
        """Depth 0 and the request's adapter."""
        return pack(_LAYOUT, 0, request.lora)

    @staticmethod
    def key_behind(parent: BlockKey, tokens: bytes) -> BlockKey:
        """The key of a block; `parent`: of the one before it, `tokens`: its 64-bit token ids."""
        blocks, lora = unpack_from(_LAYOUT, parent)
        chained = BlockKeys.key_behind(parent[calcsize(_LAYOUT) :], tokens)
        return pack(_LAYOUT, blocks + 1, lora) + chained


def depth(key: BlockKey) -> int:
    """Blocks of the sequence up to the end of the one with this key."""
    return int(unpack_from(_LAYOUT, key)[0])
