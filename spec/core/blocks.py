"""The KV block pool of all machines, and the arithmetic of its blocks.

Lengths are in tokens; every formula takes integers or solver terms.
"""

from collections.abc import Mapping, Sequence

from attrs import frozen

from spec.core.arithmetic import Number, cdiv, floor_div, maximum
from spec.core.requests import BlockKey


@frozen
class BlockPool:
    """KV blocks: which are free, in which order, which are shared, and what is cached.

    `size`: how many blocks there are. `free`: blocks that no request holds, in the order in which
    they are handed out. `references`: how many requests hold each held block. `keys`: the content
    of each cached block. `cached`: the blocks that hold a content, the one that a lookup finds
    first.
    """

    size: int
    free: Sequence[int]
    references: Mapping[int, int]
    keys: Mapping[int, BlockKey]
    cached: Mapping[BlockKey, tuple[int, ...]]


def block_count(length: Number, block_size: Number) -> Number:
    """Blocks that `length` tokens occupy."""
    return cdiv(length, block_size)


def missing_blocks(end: Number, held: Number, block_size: Number) -> Number:
    """Blocks that a table of `held` blocks lacks for slots of the first `end` positions."""
    return maximum(cdiv(end, block_size) - held, 0)


def block_index(position: Number, block_size: Number) -> Number:
    """Place in the block table of the token at `position` (nano-vllm, "Block Tables")."""
    return floor_div(position, block_size)


def slot(block: Number, position: Number, block_size: Number) -> Number:
    """Where `block` holds the token at `position` of its request (nano-vllm, "Block Tables")."""
    return block * block_size + position % block_size


def block_bytes(
    layers: Number, heads: Number, head_dim: Number, block_size: Number, element_bytes: Number
) -> Number:
    """Bytes of one block: keys and values of every layer.

    Source: nano-vllm, "Physical KV Cache"; vllm-v1, "Memory Limit: KV Cache Blocks".
    """
    return 2 * layers * heads * head_dim * block_size * element_bytes
