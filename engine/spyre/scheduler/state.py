"""The state of Spyre's scheduler between two steps."""

from collections.abc import Iterable, Sequence
from itertools import islice

from attrs import define, field

from engine.core import state
from engine.core.blocks import BlockManager
from engine.spyre.scheduler.admission import LastChunk
from engine.spyre.scheduler.requests import Batch, RequestState, WaitingQueue
from spec.core.requests import Request
from spec.spyre.config import SpyreConfig
from spec.spyre.state import Past


@define(eq=False)
class Awaited:
    """What requests wait for before their prefill, by id; contains those that wait.

    `compiling`: grammars that are not ready. `unencoded`: images that the encoder has not been
    given, in queue order; `encoding`: those that it has not encoded yet.
    """

    compiling: set[str] = field(factory=set)
    unencoded: dict[str, None] = field(factory=dict)
    encoding: set[str] = field(factory=set)

    def __contains__(self, request_id: object) -> bool:
        return (
            request_id in self.compiling
            or request_id in self.unencoded
            or request_id in self.encoding
        )

    def counts(self) -> tuple[int, int, int]:
        """How many wait for each; only arrivals and steps make it more."""
        return len(self.compiling), len(self.unencoded), len(self.encoding)

    def add(self, request: Request) -> None:
        """A request arrives."""
        if request.grammar:
            self.compiling.add(request.id)
        if request.has_images:
            self.unencoded[request.id] = None

    def next_given(self, most: int) -> tuple[str, ...]:
        """The requests whose images the encoder is given next, at most so many."""
        return tuple(islice(self.unencoded, most)) if self.unencoded else ()

    def give(self, request_ids: Iterable[str]) -> None:
        """The encoder is given the images of these requests."""
        for request_id in request_ids:
            del self.unencoded[request_id]
            self.encoding.add(request_id)

    def remove(self, request_id: str) -> None:
        """A request leaves."""
        self.compiling.discard(request_id)
        self.unencoded.pop(request_id, None)
        self.encoding.discard(request_id)


@define(eq=False)
class SchedulerState(state.SchedulerState[RequestState]):
    """Everything that planning reads and applying a plan changes.

    `reserved`: blocks promised to admitted requests and not handed out. `past`: what is remembered
    of the steps before.
    """

    config: SpyreConfig
    blocks: BlockManager
    queue: WaitingQueue
    last_chunk: LastChunk
    prefilling: RequestState | None = None
    decoding: Batch = field(factory=Batch.empty)
    paused: Batch = field(factory=Batch.empty)
    awaited: Awaited = field(factory=Awaited)
    reserved: int = 0
    past: Past = field(factory=Past)

    @property
    def admitted(self) -> Sequence[RequestState]:
        """The requests that hold blocks: the last admitted first, paused requests last."""
        ongoing = [] if self.prefilling is None else [self.prefilling]
        return [*ongoing, *self.decoding.members, *self.paused.members]
