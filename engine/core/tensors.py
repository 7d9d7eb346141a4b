"""Tensors, and the tokens of prompts and of the simulated model as tensors.

What the tokens are is said one by one in `spec.core.requests`; here they are made fast enough for a
chunk or a batch in every step.
"""

from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec.core.requests import MOST_TOKEN_ID, VOCABULARY, Prompt, cached_value

Tensor = NDArray[np.int64]
Flags = NDArray[np.bool_]
Words = NDArray[np.uint64]  # arithmetic on them wraps around, as the model's does

NO_TOKENS: Tensor = np.empty(0, np.int64)


# --- prompts ------------------------------------------------------------------------------------


def prompt_tokens(prompt: Prompt, start: int, end: int) -> Tensor:
    """Tokens `start` to `end` (not included) of the prompt, cut at its length; [tokens].

    Equal to that part of `spec.core.requests.Prompt.tokens`; what stands before it is not made.
    """
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
    return (seed + np.arange(first, last, dtype=np.int64) * stride) & MOST_TOKEN_ID


# --- the simulated model ------------------------------------------------------------------------


def cached_values(tokens: Tensor, positions: Tensor) -> Words:
    """`spec.core.requests.cached_value` of each token, neither ids nor positions negative."""
    ids: Any = tokens.astype(np.uint64)
    places: Any = positions.astype(np.uint64)
    return np.asarray(cached_value(ids, places))


def sampled_tokens(attended: Words) -> Tensor:
    """`spec.core.requests.sampled_token` of each sum of attended words."""
    return (attended % np.uint64(VOCABULARY)).astype(np.int64)
