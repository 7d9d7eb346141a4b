"""Chained block keys, made as blocks are asked for or fill; no token is hashed twice.

The keys are those of `spec.core.requests.BlockKeys`: a block's covers its tokens and, through the
key before it, all earlier ones. Source: spyre, "Prefix caching".
"""

from collections.abc import Iterator
from hashlib import blake2b

import numpy as np

from engine.core.tensors import Tensor, prompt_tokens
from engine.spyre.blocks import PrefixHit
from engine.spyre.scheduler.core import Core
from engine.spyre.scheduler.tracked import Tracked
from spec.core.requests import BlockKey

_NO_HIT = PrefixHit((), 0)
_AT_ONCE = 16  # blocks: a lookup that misses early should not hash the whole prompt


def prefix_hit(core: Core, request: Tracked) -> PrefixHit:
    """Cached blocks of the tokens to prefill, the last token left out: it is always computed.

    Looked up again only if one of them has changed since, or the next one has come to be cached.
    """
    if not core.config.prefix_caching:
        return _NO_HIT
    hit, blocks = request.hit, core.blocks
    if hit is None or hit is not blocks.watched or hit.is_stale or _finds_more(core, request, hit):
        hit = request.hit = blocks.watch(tuple(_cached_blocks(core, request)))
    return hit


def _finds_more(core: Core, request: Tracked, hit: PrefixHit) -> bool:
    """True if the block behind the hit is cached by now."""
    count = len(hit.blocks)
    if count == _full_blocks(core, request):
        return False
    return core.blocks.lookup(request.keys[count]) is not None


def _cached_blocks(core: Core, request: Tracked) -> Iterator[int]:
    """The blocks in order, up to the first that is not cached."""
    full = _full_blocks(core, request)
    for index in range(full):
        if index >= len(request.keys):
            extend_keys(core, request, min(index + _AT_ONCE, full))
        block = core.blocks.lookup(request.keys[index])
        if block is None:
            return
        yield block


def _full_blocks(core: Core, request: Tracked) -> int:
    """Blocks that the tokens to prefill fill, the last token left out."""
    return (request.prefill_len - 1) // core.config.block_size


def extend_keys(core: Core, request: Tracked, count: int) -> None:
    """Make the keys of the request's first `count` blocks, whose tokens must be known."""
    size, known = core.config.block_size, len(request.keys)
    if count <= known:
        return
    content = tokens_of(core, request, known * size, count * size).tobytes()
    width = len(content) // (count - known)
    parent = request.keys[-1] if known else b""
    new: list[BlockKey] = []
    for start in range(0, len(content), width):
        parent = blake2b(parent + content[start : start + width], digest_size=16).digest()
        new.append(parent)
    request.keys += tuple(new)


def tokens_of(core: Core, request: Tracked, start: int, end: int) -> Tensor:
    """The request's tokens from position `start` to `end`, sampled ones too; [tokens]."""
    length = request.request.prompt_len
    if end <= length:
        return prompt_tokens(request.request.prompt, start, end)
    outputs = request.outputs if request.slot < 0 else core.slots.outputs[request.slot]
    sampled = outputs[max(start - length, 0) : end - length]
    if start >= length:
        return sampled
    return np.concatenate([prompt_tokens(request.request.prompt, start, length), sampled])
