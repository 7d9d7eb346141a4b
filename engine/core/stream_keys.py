"""Keys of blocks of named streams, by arithmetic: no token is made and none is hashed.

Equal names are equal tokens (`spec.core.requests.Prompt`), and what a model samples follows from
the tokens before. So the tokens up to the end of a block are known by the streams that they are of.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any, ClassVar, TypeAlias

from engine.core.requests import RequestState
from spec.core.requests import BlockKey, Request

Run: TypeAlias = tuple[int, int]  # the first token of a part of a request, and its number

_NUMBER_BITS = 61
_PLACE_BITS = 21  # of a block in its request, more than any request has


class StreamKeys:
    """Keys of the full blocks of requests; two are equal if all tokens up to their ends are equal.

    A part of a prompt has a number, which stands for its stream and all parts before it. A block
    that ends in the part has this number and its own place as its key.
    """

    are_ahead: ClassVar[bool] = True  # all keys of a request are made at once

    def __init__(self, block_size: int) -> None:
        """`block_size`: in tokens."""
        self._size = block_size

    def behind(self, request: RequestState, count: int) -> tuple[BlockKey, ...]:
        """The keys of the first `count` blocks, or of all, without those that the request has."""
        if self.are_ahead:
            count = max(count, (request.request.prompt_len + request.request.end) // self._size)
        request.runs = request.runs or tuple(runs_of(request.request))
        return tuple(self._keys(request, len(request.hashes), count))

    def _keys(self, request: RequestState, first: int, count: int) -> Any:
        """The keys of blocks `first` to `count`, as numbers."""
        size, runs = self._size, request.runs
        start, number = runs[-1]
        if first * size >= start:  # a row that decodes
            return range(number + first, number + count)
        ends = [start for start, _ in runs[1:]] + [count * size]
        return chain.from_iterable(
            range(number + max(first, start // size), number + min(count, end // size))
            for (start, number), end in zip(runs, ends, strict=True)
        )


def runs_of(request: Request) -> Iterator[Run]:
    """The parts of the prompt and, behind them, the tokens that the request samples.

    Raises:
        TypeError: a part is no stream.
    """
    start = number = 0
    for name, length in request.prompt.parts:
        if not isinstance(name, str):
            raise TypeError(f"{request.id}: a part of its prompt is no stream")
        if length:
            number = _number(number, start, name)
            yield start, number
            start += length
    yield start, _number(number, start, None)


def _number(before: int, start: int, name: str | None) -> int:
    """The number of a part: a stream, or sampled tokens, from token `start` on."""
    number: int = hash((before, start, name)) & (2**_NUMBER_BITS - 1)
    return number << _PLACE_BITS
