"""The record of a Spyre step, as rules, traces and comparisons see it."""

from collections.abc import Iterable
from typing import TypeAlias

from attrs import frozen

from spec.core import records
from spec.core.records import StepRecord
from spec.core.requests import BlockKeys, Request
from spec.spyre.config import SpyreConfig
from spec.spyre.state import Sequence, State

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


@frozen(kw_only=True)
class Step(StepRecord):
    """One scheduler step.

    `tkv` and `volume`: of this step, in tokens. `chunk`: of a prefill step. `batch`: the rows of a
    decode step as computed, also those that then left.
    """

    kind: str
    before: State
    after: State
    tkv: int = 0
    volume: int = 0
    chunk: Chunk | None = None
    batch: tuple[Sequence, ...] = ()
