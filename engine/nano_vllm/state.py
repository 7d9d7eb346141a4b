"""What nano-vLLM's scheduler remembers between two steps."""

from collections.abc import Sequence
from typing import ClassVar

from attrs import define, field

from engine.core import state
from engine.core.decoding import RequestState
from engine.core.requests import WaitingQueue
from engine.nano_vllm.blocks import BlockManager
from engine.nano_vllm.running import Running
from spec.core.requests import BlockKeys
from spec.nano_vllm.block_hashes import ContentKeys
from spec.nano_vllm.config import NanoVllmConfig
from spec.nano_vllm.formulas import fills_block, starts_block


@define(eq=False)
class SchedulerState(state.SchedulerState[RequestState]):
    """Everything that planning reads and applying a plan changes.

    `running`: the running queue. `grows_at`, `fills_at`: of a length, what is left of it in its
    last block where its newest token needs a new block, and where it fills its block.
    """

    keys: ClassVar[type[BlockKeys]] = ContentKeys

    config: NanoVllmConfig
    blocks: BlockManager
    queue: WaitingQueue[RequestState]
    running: Running
    grows_at: int = field(init=False)
    fills_at: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        size, reading = self.config.block_size, self.config.new_block
        self.grows_at = next(one for one in range(size) if starts_block(one, size, reading))
        self.fills_at = next(one for one in range(size) if fills_block(one, size))

    @property
    def admitted(self) -> Sequence[RequestState]:
        """The requests that hold blocks."""
        return self.running.rows
