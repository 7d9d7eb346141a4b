"""Records of the nano-vLLM scheduler: its state between two steps, and a step.

There are no phases: a sequence is in one of two queues. All classes are immutable, hashable and
comparable.
"""

from collections import abc
from collections.abc import Iterable, Set
from typing import TypeAlias

from attrs import frozen

from spec.core import records
from spec.core.blocks import BlockPool
from spec.core.records import SomeState, StepRecord
from spec.core.requests import Request
from spec.nano_vllm.block_hashes import ContentKeys
from spec.nano_vllm.config import NanoVllmConfig

Context: TypeAlias = records.Context[NanoVllmConfig]


def context_of(config: NanoVllmConfig, requests: Iterable[Request]) -> Context:
    """What rules may look up, with keys made of a block's hash and its tokens."""
    by_id = {request.id: request for request in requests}
    return records.Context(config, by_id, ContentKeys(by_id, config.block_size))


@frozen
class Sequence:
    """A request inside the scheduler; lengths in tokens.

    `prefill_len`: tokens that its prefill covers: the prompt, and after a preemption also what it
    had generated. `computed`: tokens whose keys and values are in the cache, those of reused blocks
    included. `generated`: tokens sampled so far. `blocks`: its block table. `hit_blocks`: cached
    blocks found when it was handed its blocks.
    """

    id: str
    prefill_len: int
    computed: int = 0
    generated: int = 0
    blocks: tuple[int, ...] = ()
    hit_blocks: int = 0


@frozen
class State(SomeState):
    """A scheduler at rest. A request is in exactly one of the places, from arrival on.

    `waiting` and `running`: the queues, front first. `finished` and `aborted` have left.
    """

    pool: BlockPool
    waiting: abc.Sequence[Sequence] = ()
    running: tuple[Sequence, ...] = ()
    finished: Set[str] = frozenset()
    aborted: Set[str] = frozenset()

    @property
    def admitted(self) -> tuple[Sequence, ...]:
        """Every request that holds blocks, but for one whose prefill is cut."""
        return self.running

    @property
    def in_progress(self) -> tuple[Sequence, ...]:
        """The front of waiting if its prefill is cut and has begun; else nothing."""
        return tuple(row for row in self.waiting[:1] if row.blocks)

    @property
    def present(self) -> tuple[Sequence, ...]:
        """Every request that has arrived and has not left."""
        return (*self.waiting, *self.running)


@frozen(kw_only=True)
class Step(StepRecord):
    """One scheduler step.

    `batch`: its rows as computed, also those that then left.
    """

    kind: str
    before: State
    after: State
    batch: tuple[Sequence, ...] = ()
