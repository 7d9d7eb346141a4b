"""What the scheduler remembers between two steps."""

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


@define(eq=False)
class SchedulerState:
    """Everything that planning reads and applying a plan changes.

    `reserved`: blocks promised to admitted requests and not handed out. `past`: what is remembered
    of the steps before. `finished`, `aborted`: names of requests that have left; none is used
    twice.
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
    finished: set[str] = field(factory=set)
    aborted: set[str] = field(factory=set)

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
