"""The state of a scheduler between two steps, for all policies."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import ClassVar, Generic

import numpy as np
from attrs import define, field

from engine.core.blocks import BlockManager
from engine.core.requests import RequestT, Slots, UnseenSlots, WaitingQueue
from engine.core.stream_keys import StreamKeys
from engine.core.tensors import Tensor, prompt_tokens
from spec.core.configuration import PolicyConfig
from spec.core.requests import BlockKey, BlockKeys

NAMES_KEPT = 16_384
_HASHED_AT_ONCE = 16  # blocks; a lookup that misses early does not hash the whole prompt


class LeftNames:
    """Ids of the last 16,384 requests that have left; the bound keeps a server's memory constant.

    A request with an id among them is refused as a duplicate. Once an id is evicted, a request with
    this id is accepted again.
    """

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()

    def add(self, name: str) -> None:
        """Add an id; evict the oldest if there are too many."""
        self._names[name] = None
        if len(self._names) > NAMES_KEPT:
            self._names.popitem(last=False)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __reversed__(self) -> Iterator[str]:
        return reversed(self._names)


@define(eq=False)
class SchedulerState(ABC, Generic[RequestT]):
    """State that planning reads and applying a plan changes; each policy adds its own fields.

    `keys`: hash function of blocks. `streams`: names blocks by streams instead, so that no tokens
    are needed; None: blocks are hashed. `finished`, `aborted`: ids of requests that have left.
    """

    keys: ClassVar[type[BlockKeys]] = BlockKeys
    _stream_keys: ClassVar[type[StreamKeys]] = StreamKeys

    config: PolicyConfig
    blocks: BlockManager
    queue: WaitingQueue[RequestT]
    slots: Slots = field(factory=Slots, kw_only=True)
    finished: LeftNames = field(factory=LeftNames, kw_only=True)
    aborted: LeftNames = field(factory=LeftNames, kw_only=True)
    streams: StreamKeys | None = field(default=None, init=False)

    @property
    @abstractmethod
    def admitted(self) -> Sequence[RequestT]:
        """The requests that hold blocks."""

    def find(self, request_id: str) -> RequestT | None:
        """The request with this id if it has arrived and not left, or None."""
        waiting = self.queue.find(request_id)
        if waiting is not None:
            return waiting
        return next((request for request in self.admitted if request.id == request_id), None)

    def request_tokens(self, request: RequestT, start: int, end: int) -> Tensor:
        """Tokens `start` to `end` (not included) of prompt and sampled tokens; [tokens]."""
        length = request.request.prompt_len
        if end <= length:
            return prompt_tokens(request.request.prompt, start, end)
        outputs = request.outputs if request.slot < 0 else self.slots.outputs[request.slot]
        sampled = outputs[max(start - length, 0) : end - length]
        if start >= length:
            return sampled
        return np.concatenate([prompt_tokens(request.request.prompt, start, length), sampled])

    def name_by_streams(self) -> None:
        """Name blocks by streams from now on, so that no token has to be known.

        All requests have prompts of named streams.
        """
        self.streams = self._stream_keys(self.config.block_size)
        self.slots = UnseenSlots()

    def hash_blocks(self, request: RequestT, count: int) -> None:
        """Extend the request's hashes to its first `count` blocks, all full of known tokens.

        The policy's `keys` hash each block: its tokens and, through the hash of the block before,
        all earlier tokens.
        """
        size, hashed = self.config.block_size, len(request.hashes)
        if count <= hashed:
            return
        if self.streams is not None:
            request.hashes += self.streams.behind(request, count)
            return
        content = self.request_tokens(request, hashed * size, count * size).tobytes()
        width = len(content) // (count - hashed)
        parent = request.hashes[-1] if hashed else b""
        new: list[BlockKey] = []
        for start in range(0, len(content), width):
            parent = self.keys.key_behind(parent, content[start : start + width])
            new.append(parent)
        request.hashes += tuple(new)

    def leading_keys(self, request: RequestT, count: int) -> Iterator[BlockKey]:
        """Hashes of the request's first `count` blocks, computed as the iteration needs them."""
        for index in range(count):
            if index >= len(request.hashes):
                at_once = count if self.streams is not None else index + _HASHED_AT_ONCE
                self.hash_blocks(request, min(at_once, count))
            yield request.hashes[index]
