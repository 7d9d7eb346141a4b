"""What the scheduler remembers between two steps."""

from collections import OrderedDict
from collections.abc import Iterator
from hashlib import blake2b

import numpy as np
from attrs import define, field

from engine.core.tensors import Tensor, prompt_tokens
from engine.spyre.blocks import BlockManager
from engine.spyre.scheduler.admission import LastChunk
from engine.spyre.scheduler.requests import Batch, RequestState, Slots, WaitingQueue
from spec.core.requests import BlockKey
from spec.spyre.config import SpyreConfig
from spec.spyre.state import Past

NAMES_KEPT = 65_536


class LeftNames:
    """Names of requests that have left: the last 65,536, so that a server's memory stays flat.

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
class SchedulerState:
    """Everything that planning reads and applying a plan changes.

    `reserved`: blocks promised to admitted requests and not handed out. `past`: what is remembered
    of the steps before. `finished`, `aborted`: names of requests that have left.
    """

    config: SpyreConfig
    blocks: BlockManager
    queue: WaitingQueue
    last_chunk: LastChunk
    prefilling: RequestState | None = None
    decoding: Batch = field(factory=Batch.empty)
    paused: Batch = field(factory=Batch.empty)
    slots: Slots = field(factory=Slots)
    reserved: int = 0
    past: Past = field(factory=Past)
    finished: LeftNames = field(factory=LeftNames)
    aborted: LeftNames = field(factory=LeftNames)

    @property
    def admitted(self) -> list[RequestState]:
        """The requests that hold blocks: the last admitted first, paused requests last."""
        ongoing = [] if self.prefilling is None else [self.prefilling]
        return [*ongoing, *self.decoding.members, *self.paused.members]

    def tokens_of(self, request: RequestState, start: int, end: int) -> Tensor:
        """The request's tokens from position `start` to `end`, sampled ones too; [tokens]."""
        length = request.request.prompt_len
        if end <= length:
            return prompt_tokens(request.request.prompt, start, end)
        outputs = request.outputs if request.slot < 0 else self.slots.outputs[request.slot]
        sampled = outputs[max(start - length, 0) : end - length]
        if start >= length:
            return sampled
        return np.concatenate([prompt_tokens(request.request.prompt, start, length), sampled])

    def hash_blocks(self, request: RequestState, count: int) -> None:
        """Make the hashes of the request's first `count` blocks, whose tokens must be known.

        They are those of `spec.core.requests.BlockKeys`: a block's covers its tokens and, through
        the hash before it, all earlier ones. Source: spyre, "Prefix caching".
        """
        size, known = self.config.block_size, len(request.hashes)
        if count <= known:
            return
        content = self.tokens_of(request, known * size, count * size).tobytes()
        width = len(content) // (count - known)
        parent = request.hashes[-1] if known else b""
        new: list[BlockKey] = []
        for start in range(0, len(content), width):
            parent = blake2b(parent + content[start : start + width], digest_size=16).digest()
            new.append(parent)
        request.hashes += tuple(new)
