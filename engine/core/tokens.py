"""Token ids as arrays: any part of a prompt, without making what stands before it.

Equal to `spec.core.requests.Prompt.tokens`, which says what the tokens are; this is how they are
made fast enough for a chunk in every step.
"""

from hashlib import blake2b

import numpy as np

from engine.spyre.device.inputs import Tensor
from spec.core.requests import Prompt

NO_TOKENS: Tensor = np.empty(0, np.int64)
_TOKEN_BITS = 0x7FFF_FFFF


def prompt_tokens(prompt: Prompt, start: int, end: int) -> Tensor:
    """Tokens `start` to `end` (not included) of the prompt, cut at its length; [tokens]."""
    found: list[Tensor] = []
    before = 0
    for part in prompt.parts:
        length = _part_length(part)
        first, last = max(start - before, 0), min(end - before, length)
        if first < last:
            found.append(_part_tokens(part, first, last))
        before += length
        if before >= end:
            break
    return found[0] if len(found) == 1 else np.concatenate([NO_TOKENS, *found])


def _part_length(part: tuple[str, int] | tuple[int, ...]) -> int:
    match part:
        case (str(), int(count)):
            return count
    return len(part)


def _part_tokens(part: tuple[str, int] | tuple[int, ...], first: int, last: int) -> Tensor:
    match part:
        case (str(name), _):
            return _stream_tokens(name, first, last)
    return np.array(part[first:last], np.int64)


def _stream_tokens(name: str, first: int, last: int) -> Tensor:
    """Tokens of a named stream, as `spec.core.requests.stream_tokens` defines them."""
    digest = blake2b(name.encode(), digest_size=8).digest()
    seed, stride = int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:], "big") | 1
    return (seed + np.arange(first, last, dtype=np.int64) * stride) & _TOKEN_BITS
