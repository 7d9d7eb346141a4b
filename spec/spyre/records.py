"""What a scheduler did in one step, as rules, traces and comparisons see it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from attrs import field, frozen

from spec.core import records
from spec.core.records import Event
from spec.core.requests import BlockKeys, Request
from spec.spyre.config import SpyreConfig
from spec.spyre.state import Sequence as Row
from spec.spyre.state import State

Context: TypeAlias = records.Context[SpyreConfig]


def context_of(config: SpyreConfig, requests: Iterable[Request]) -> Context:
    """What rules may look up under this configuration."""
    by_id = {request.id: request for request in requests}
    return records.Context(config, by_id, BlockKeys(by_id, config.block_size))


@frozen
class Chunk:
    """The part of a prompt that a prefill step computes; lengths in tokens.

    `start` and `end`: positions in the prompt. `left_padding` and `right_padding`: of the whole
    padded prompt. `cached_tokens`: reused without computing. `inner_padding`: cached, computed
    again, writes redirected. `block_table`: blocks of the padded prompt up to this chunk's end,
    padding included. `writes`: the block that each of this chunk's blocks is written to.
    """

    id: str
    chunk: int
    chunks: int
    start: int
    end: int
    left_padding: int
    right_padding: int
    cached_tokens: int
    inner_padding: int
    block_table: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()

    @property
    def is_last(self) -> bool:
        """True for the chunk that yields the first token."""
        return self.chunk == self.chunks - 1


@frozen
class Step:
    """One scheduler step: the state it started from, what it did, the state it left.

    `before` includes the arrivals and aborts since the step before. `time`: simulated clock
    when it began. `scheduled`: tokens computed, by request. `tkv` and `volume`: of this step,
    in tokens. `chunk`: of a prefill step. `batch`: the rows of a decode step as computed, also
    those that then left. `outputs`: tokens sampled. `ended`: who sampled the end of sequence where
    the environment decided so and not the request. `refusal`: the rule that first kept somebody
    from a prefill step.
    """

    index: int
    time: float
    kind: str
    before: State
    after: State
    scheduled: Mapping[str, int] = field(factory=dict)
    tkv: int = 0
    volume: int = 0
    chunk: Chunk | None = None
    batch: tuple[Row, ...] = ()
    outputs: Mapping[str, Sequence[int]] = field(factory=dict)
    ended: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    aborted: tuple[str, ...] = ()
    refusal: str | None = None
    events: tuple[Event, ...] = ()

    def happened(self, *transitions: str) -> list[Event]:
        """The events of these kinds, in order."""
        return [event for event in self.events if event.transition in transitions]
