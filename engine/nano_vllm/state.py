"""The state of nano-vLLM's scheduler between two steps."""

from collections.abc import Sequence
from typing import ClassVar

from attrs import define, field

from engine.core import state
from engine.core.decoding import RequestState
from engine.core.requests import WaitingQueue
from engine.core.stream_keys import StreamKeys
from engine.nano_vllm.blocks import BlockManager
from engine.nano_vllm.running import Running
from engine.nano_vllm.stream_keys import ContentStreamKeys
from spec.core.requests import BlockKeys
from spec.nano_vllm.block_hashes import ContentKeys
from spec.nano_vllm.config import NanoVllmConfig
from spec.nano_vllm.formulas import fills_block, starts_block


@define(eq=False)
class SchedulerState(state.SchedulerState[RequestState]):
    """State that planning reads and applying a plan changes.

    `running`: the running queue. `growing_remainder`, `filling_remainder`: length modulo block size
    of a row whose newest token needs a new block, and of a row whose newest token fills its block.
    """

    keys: ClassVar[type[BlockKeys]] = ContentKeys
    _stream_keys: ClassVar[type[StreamKeys]] = ContentStreamKeys

    config: NanoVllmConfig
    blocks: BlockManager
    queue: WaitingQueue[RequestState]
    running: Running
    growing_remainder: int = field(init=False)
    filling_remainder: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        size, reading = self.config.block_size, self.config.new_block
        self.growing_remainder = next(
            length for length in range(size) if starts_block(length, size, reading)
        )
        self.filling_remainder = next(length for length in range(size) if fills_block(length, size))

    @property
    def admitted(self) -> Sequence[RequestState]:
        """The requests that hold blocks."""
        return self.running.rows
