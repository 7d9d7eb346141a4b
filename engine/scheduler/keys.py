"""Chained block keys, made as blocks are asked for or fill; no token is hashed twice.

The keys are those of `spec.requests.BlockKeys`: a block's covers its tokens and, through the key
before it, all earlier ones. Source: spyre, "Prefix caching".
"""

from hashlib import blake2b

import numpy as np

from engine.device.inputs import Tensor
from engine.scheduler.core import Core
from engine.scheduler.tracked import Tracked
from engine.tokens import prompt_tokens

_AT_ONCE = 16  # blocks: a lookup that misses early should not hash the whole prompt


def cached_blocks(core: Core, request: Tracked) -> tuple[int, ...]:
    """Cached blocks of the tokens to prefill, the last token left out: it is always computed.

    What was found before stays true until a content is evicted; then only more can be found.
    """
    if not core.config.prefix_caching:
        return ()
    if request.hits_at != core.blocks.evictions:
        request.hits, request.hits_at = (), core.blocks.evictions
    full = (request.prefill_len - 1) // core.config.block_size
    found: list[int] = []
    for index in range(len(request.hits), full):
        if index >= len(request.keys):
            extend_keys(core, request, min(index + _AT_ONCE, full))
        block = core.blocks.lookup(request.keys[index])
        if block is None:
            break
        found.append(block)
    if found:
        request.hits += tuple(found)
    return request.hits


def extend_keys(core: Core, request: Tracked, count: int) -> None:
    """Make the keys of the request's first `count` blocks, whose tokens must be known."""
    size, known = core.config.block_size, len(request.keys)
    if count <= known:
        return
    content = tokens_of(core, request, known * size, count * size).tobytes()
    width = len(content) // (count - known)
    keys = list(request.keys)
    for start in range(0, len(content), width):
        parent = keys[-1] if keys else b""
        keys.append(blake2b(parent + content[start : start + width], digest_size=16).digest())
    request.keys = tuple(keys)


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
