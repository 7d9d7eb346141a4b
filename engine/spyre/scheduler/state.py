"""The state of Spyre's scheduler between two steps."""

from collections.abc import Sequence

from attrs import define, field

from engine.core import state
from engine.core.blocks import BlockManager
from engine.spyre.scheduler.admission import LastChunk
from engine.spyre.scheduler.requests import Batch, RequestState, WaitingQueue
from spec.spyre.config import SpyreConfig
from spec.spyre.state import Past


@define(eq=False)
class SchedulerState(state.SchedulerState[RequestState]):
    """Everything that planning reads and applying a plan changes.

    `compiling`: ids of requests whose grammars are not ready. `reserved`: blocks promised to
    admitted requests and not handed out. `past`: what is remembered of the steps before.
    """

    config: SpyreConfig
    blocks: BlockManager
    queue: WaitingQueue
    last_chunk: LastChunk
    prefilling: RequestState | None = None
    decoding: Batch = field(factory=Batch.empty)
    paused: Batch = field(factory=Batch.empty)
    compiling: set[str] = field(factory=set)
    reserved: int = 0
    past: Past = field(factory=Past)

    @property
    def admitted(self) -> Sequence[RequestState]:
        """The requests that hold blocks: the last admitted first, paused requests last."""
        ongoing = [] if self.prefilling is None else [self.prefilling]
        return [*ongoing, *self.decoding.members, *self.paused.members]
