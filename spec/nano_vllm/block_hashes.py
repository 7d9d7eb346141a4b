"""What nano-vLLM hashes: the hash of a block, chained to those before, and its own tokens.

Source: nano-vllm, chapter 7, and the released commit 9e8507e.
"""

from array import array
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from spec.core.requests import BlockKey, BlockKeys, Request

_CONTENT_BYTES = 8


class ContentKeys(BlockKeys):
    """Keys made of a block's hash, which is chained, and of its own tokens, which are not.

    The released block carries both: the lookup table maps the hash, the hit check compares the
    tokens. `content` is the part of a key that stands for the tokens.
    """

    def __init__(self, requests: Mapping[str, Request], block_size: int) -> None:
        """`requests` by id; `block_size` in tokens."""
        super().__init__(requests, block_size)
        self._contents: dict[str, list[bytes]] = {}

    def of(self, request_id: str, blocks: int) -> Sequence[BlockKey]:
        """Keys of the request's first `blocks` blocks, prompt and sampled tokens alike."""
        contents = self._contents.setdefault(request_id, [])
        if len(contents) < blocks:
            contents += self._contents_from(request_id, len(contents), blocks)
        hashes = super().of(request_id, blocks)
        return [hash_ + content for hash_, content in zip(hashes, contents, strict=False)]

    def forget(self, request_id: str) -> None:
        """Drop what is kept for a request that has left."""
        super().forget(request_id)
        self._contents.pop(request_id, None)

    def _contents_from(self, request_id: str, first: int, end: int) -> list[bytes]:
        size = self._block_size
        tokens = leading_tokens(self._requests[request_id], end * size)
        return [_digest(tokens[index * size : (index + 1) * size]) for index in range(first, end)]


def content(key: BlockKey) -> bytes:
    """The part of a key that is equal for blocks of equal tokens, whatever comes before them."""
    return key[-_CONTENT_BYTES:]


def leading_tokens(request: Request, count: int) -> list[int]:
    """The first `count` tokens of the request, prompt and then output."""
    outputs = range(max(count - request.prompt_len, 0))
    return [*request.prompt.tokens()[:count], *(request.output_token(index) for index in outputs)]


def _digest(tokens: Sequence[int]) -> bytes:
    return blake2b(array("q", tokens).tobytes(), digest_size=_CONTENT_BYTES).digest()
