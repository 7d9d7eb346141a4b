"""Tensor types, and the tokens of prompts and of the simulated model as tensors.

`spec.core.requests` defines single tokens; the functions here compute all tokens of a chunk or a
batch at once.
"""

from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spec.core.requests import MOST_TOKEN_ID, VOCABULARY, Prompt, cached_value

Tensor = NDArray[np.int64]
Flags = NDArray[np.bool_]
Words = NDArray[np.uint64]  # 64-bit arithmetic that wraps around, as in the model

NO_TOKENS: Tensor = np.empty(0, np.int64)


# --- prompts ------------------------------------------------------------------------------------


def prompt_tokens(prompt: Prompt, start: int, end: int) -> Tensor:
    """Tokens `start` to `end` (not included) of the prompt, cut at its length; [tokens].

    The same tokens as in `spec.core.requests.Prompt.tokens`; those before `start` are not computed.
    """
    pieces: list[Tensor] = []
    before = 0
    for part in prompt.parts:
        length = _part_length(part)
        first, last = max(start - before, 0), min(end - before, length)
        if first < last:
            pieces.append(_part_tokens(part, first, last))
        before += length
        if before >= end:
            break
    tokens = pieces[0] if len(pieces) == 1 else np.concatenate([NO_TOKENS, *pieces])
    for span in prompt.spans:
        first, last = max(span.offset, start), min(span.end, end)
        if first < last:
            encoded = _stream_tokens(span.stream, first - span.offset, last - span.offset)
            tokens[first - start : last - start] = encoded
    return tokens


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
    """Tokens `first` to `last` (not included) of the stream `spec.core.requests.stream_tokens`."""
    digest = blake2b(name.encode(), digest_size=8).digest()
    seed, stride = int.from_bytes(digest[:4], "big"), int.from_bytes(digest[4:], "big") | 1
    return (seed + np.arange(first, last, dtype=np.int64) * stride) & MOST_TOKEN_ID


# --- the simulated model ------------------------------------------------------------------------


def cached_values(tokens: Tensor, positions: Tensor) -> Words:
    """`spec.core.requests.cached_value` of each token; ids and positions must not be negative."""
    ids: Any = tokens.astype(np.uint64)
    places: Any = positions.astype(np.uint64)
    return np.asarray(cached_value(ids, places))


def sampled_tokens(attended: Words) -> Tensor:
    """`spec.core.requests.sampled_token` of each sum of attended words."""
    return (attended % np.uint64(VOCABULARY)).astype(np.int64)
