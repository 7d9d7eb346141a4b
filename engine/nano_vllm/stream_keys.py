"""Keys of blocks of named streams as nano-vLLM has them, with a part that stands for the tokens."""

from collections.abc import Iterator

from engine.core import stream_keys
from engine.core.requests import RequestState
from spec.core.requests import BlockKey
from spec.nano_vllm.block_hashes import ContentKeys


class ContentStreamKeys(stream_keys.StreamKeys):
    """Keys that hash of which streams a block is, in the place of its tokens."""

    are_ahead = False

    def _keys(self, request: RequestState, first: int, count: int) -> Iterator[BlockKey]:
        parent = request.hashes[-1] if first else b""
        for place in range(first, count):
            content = repr([*self._content(request, place * self._size)])
            parent = ContentKeys.key_behind(parent, content.encode())
            yield parent

    def _content(self, request: RequestState, begin: int) -> Iterator[tuple[str | int, int, int]]:
        """The streams of a block with the tokens of each; sampled tokens have a number for name."""
        runs = request.runs
        names = [name for name, length in request.request.prompt.parts if length]
        ends = [start for start, _ in runs[1:]]
        for (start, _), end, name in zip(runs, [*ends, None], [*names, runs[-1][1]], strict=True):
            last = begin + self._size if end is None else min(end, begin + self._size)
            if start < begin + self._size and max(start, begin) < last:
                yield name, max(start, begin) - start, last - start
