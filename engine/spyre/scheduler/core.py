"""The scheduler's own state: who is in which phase, the pool, and what the last step was."""

from copy import copy

from attrs import define, evolve, field

from engine.spyre.blocks import BlockManager
from engine.spyre.scheduler.batch import Batch
from engine.spyre.scheduler.projection import Projection
from engine.spyre.scheduler.queue import WaitingQueue
from engine.spyre.scheduler.slots import Slots
from engine.spyre.scheduler.tracked import Tracked
from spec.core.records import IDLE
from spec.spyre.config import SpyreConfig


@define(eq=False)
class Core:
    """Everything that planning reads and carrying out a plan changes.

    `reserved`: blocks promised to admitted requests and not handed out. `last_kind`, `last_tkv`:
    of the step before. `finished`, `aborted`: who has left; a name is never used twice.
    `projection`: what was last projected of the batch, so that it is not done for each candidate.
    """

    config: SpyreConfig
    blocks: BlockManager
    queue: WaitingQueue
    prefilling: Tracked | None = None
    decoding: Batch = field(factory=Batch.empty)
    paused: Batch = field(factory=Batch.empty)
    slots: Slots = field(factory=Slots)
    reserved: int = 0
    last_kind: str = IDLE
    last_tkv: int = 0
    finished: set[str] = field(factory=set)
    aborted: set[str] = field(factory=set)
    projection: Projection | None = None

    @property
    def admitted(self) -> list[Tracked]:
        """Who was admitted and has not left: the last admitted first, paused requests last."""
        ongoing = [] if self.prefilling is None else [self.prefilling]
        return [*ongoing, *self.decoding.members, *self.paused.members]

    def copy(self) -> "Core":
        """The same state, nothing of it shared that a step changes."""
        copies = {one: copy(one) for one in (*self.queue, *self.admitted)}
        return evolve(
            self,
            blocks=self.blocks.copy(),
            queue=self.queue.copy(copies),
            prefilling=None if self.prefilling is None else copies[self.prefilling],
            decoding=self.decoding.copy(copies),
            paused=self.paused.copy(copies),
            slots=self.slots.copy(),
            projection=None,
            finished=set(self.finished),
            aborted=set(self.aborted),
        )
