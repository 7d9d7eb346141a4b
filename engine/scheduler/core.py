"""The scheduler's own state: who is in which phase, the pool, and what the last step was."""

from attrs import define, field

from engine.blocks import BlockManager
from engine.scheduler.batch import Batch
from engine.scheduler.slots import Slots
from engine.scheduler.tracked import Tracked, WaitingQueue
from spec.config import Config
from spec.records import IDLE


@define(eq=False)
class Core:
    """Everything that planning reads and carrying out a plan changes.

    `reserved`: blocks promised to admitted requests and not handed out. `last_kind`, `last_tkv`:
    of the step before. `finished`, `aborted`: who has left; a name is never used twice.
    """

    config: Config
    blocks: BlockManager
    queue: WaitingQueue = field(factory=WaitingQueue)
    prefilling: Tracked | None = None
    decoding: Batch = field(factory=Batch.empty)
    paused: Batch = field(factory=Batch.empty)
    slots: Slots = field(factory=Slots)
    reserved: int = 0
    last_kind: str = IDLE
    last_tkv: int = 0
    finished: set[str] = field(factory=set)
    aborted: set[str] = field(factory=set)
