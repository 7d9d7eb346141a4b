"""What a scheduler of any policy remembers between two steps."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import ClassVar, Generic

import numpy as np
from attrs import define, field

from engine.core.blocks import BlockManager
from engine.core.requests import RequestT, Slots, WaitingQueue
from engine.core.tensors import Tensor, prompt_tokens
from spec.core.configuration import PolicyConfig
from spec.core.requests import BlockKey, BlockKeys

NAMES_KEPT = 16_384
_HASHED_AT_ONCE = 16  # blocks: a lookup that misses early should not hash the whole prompt


class LeftNames:
    """Names of requests that have left: the last 16,384, so that a server's memory stays flat.

    A request is refused under a name among them. That many requests later, what a client sent
    twice is served twice.
    """

    def __init__(self) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()

    def add(self, name: str) -> None:
        """Note a name; the oldest is forgotten."""
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
    """What planning reads and applying a plan changes; each policy adds its own.

    `keys`: how blocks are hashed. `finished`, `aborted`: names of requests that have left.
    """

    keys: ClassVar[type[BlockKeys]] = BlockKeys

    config: PolicyConfig
    blocks: BlockManager
    queue: WaitingQueue[RequestT]
    slots: Slots = field(factory=Slots, kw_only=True)
    finished: LeftNames = field(factory=LeftNames, kw_only=True)
    aborted: LeftNames = field(factory=LeftNames, kw_only=True)

    @property
    @abstractmethod
    def admitted(self) -> Sequence[RequestT]:
        """The requests that hold blocks."""

    def find(self, request_id: str) -> RequestT | None:
        """The request of this name, if it has arrived and not left."""
        waiting = self.queue.find(request_id)
        if waiting is not None:
            return waiting
        return next((one for one in self.admitted if one.id == request_id), None)

    def tokens_of(self, request: RequestT, start: int, end: int) -> Tensor:
        """The request's tokens from position `start` to `end`, sampled ones too; [tokens]."""
        length = request.request.prompt_len
        if end <= length:
            return prompt_tokens(request.request.prompt, start, end)
        outputs = request.outputs if request.slot < 0 else self.slots.outputs[request.slot]
        sampled = outputs[max(start - length, 0) : end - length]
        if start >= length:
            return sampled
        return np.concatenate([prompt_tokens(request.request.prompt, start, length), sampled])

    def hash_blocks(self, request: RequestT, count: int) -> None:
        """Make the hashes of the request's first `count` blocks, whose tokens must be known.

        They are those of the policy's `keys`: a block's covers its tokens and, through the hash
        before it, all earlier ones.
        """
        size, known = self.config.block_size, len(request.hashes)
        if count <= known:
            return
        content = self.tokens_of(request, known * size, count * size).tobytes()
        width = len(content) // (count - known)
        parent = request.hashes[-1] if known else b""
        new: list[BlockKey] = []
        for start in range(0, len(content), width):
            parent = self.keys.key_behind(parent, content[start : start + width])
            new.append(parent)
        request.hashes += tuple(new)

    def leading_keys(self, request: RequestT, count: int) -> Iterator[BlockKey]:
        """Hashes of the request's first `count` blocks, made only as far as they are asked for."""
        for index in range(count):
            if index >= len(request.hashes):
                self.hash_blocks(request, min(index + _HASHED_AT_ONCE, count))
            yield request.hashes[index]
