"""The block hashes of nano-vLLM: each chained to the one before, and kept with the tokens.

Source: nano-vllm, chapter 7, and the released commit 9e8507e.
"""

from hashlib import blake2b

from spec.core.requests import BlockKey, BlockKeys
from spec.nano_vllm.config import HitCheck

_CONTENT_BYTES = 8


class ContentKeys(BlockKeys):
    """Keys made of a block's hash, which is chained, and of its own tokens, which are not.

    The released block carries both: the lookup table maps the hash, the hit check compares the
    tokens. `content` is the part of a key that stands for the tokens.
    """

    @staticmethod
    def key_behind(parent: BlockKey, tokens: bytes) -> BlockKey:
        """The key of a block; `parent`: of the one before it, `tokens`: its 64-bit token ids."""
        hash_ = BlockKeys.key_behind(parent[:-_CONTENT_BYTES], tokens)
        return hash_ + _digest(tokens)


def _digest(tokens: bytes) -> bytes:
    return blake2b(tokens, digest_size=_CONTENT_BYTES).digest()


def passes(held: BlockKey | None, key: BlockKey, check: HitCheck) -> bool:
    """True if a block that the lookup table names for `key` passes the check; `held`: its own."""
    match check:
        case HitCheck.TOKENS:
            return content(held or b"") == content(key)
        case HitCheck.HASH:
            return held == key
    return True


def content(key: BlockKey) -> bytes:
    """The part of a key that is equal for blocks of equal tokens, with any tokens before them."""
    return key[-_CONTENT_BYTES:]
