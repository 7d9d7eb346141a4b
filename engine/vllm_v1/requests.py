"""A request inside vLLM V1's scheduler, and the queue in the order of priorities."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Self

import numpy as np
from attrs import define

from engine.core import decoding
from engine.core.requests import WaitingQueue
from engine.core.tensors import Tensor
from spec.vllm_v1.config import valid_after_loss
from spec.vllm_v1.records import Load
from spec.vllm_v1.releases import Behaviour


@define(eq=False)
class RequestState(decoding.RequestState):
    """A request from its arrival, or its last preemption, until it leaves; lengths in tokens.

    - `tokens`: prompt and sampled tokens, as long as it does not decode (`Running.tokens`).
    - `drafts`: proposed and not yet verified.
    - `placeholders`: tokens that steps in flight sample for it, or verify as drafts.
    - `registered`: leading blocks of its table that lookups can find.
    - `prefilling`: its last step left some of its tokens uncomputed.
    - `load`: where the load of its external keys and values stands.
    - `sending`: it has left, and the connector sends its keys and values.
    - `external`: tokens at its beginning that the connector can bring; `if_lost`: those of them
      that come although the load is lost.
    - `unanswered`: the connector has not said what it can bring.
    - `tables`: its block tables in the groups of layers beside the first; `junction`: where its
      prefix ended in the first, if others had less of it; `grown_from`: places that its tables of
      states had before they grew last, where some may be left behind.
    - `arrival`: how many arrived before it, 0 under first come, first served.
    """

    tokens: int = 0
    drafts: int = 0
    placeholders: int = 0
    registered: int = 0
    prefilling: bool = False
    load: Load = Load.NONE
    sending: bool = False
    external: int = 0
    if_lost: int = 0
    unanswered: bool = False
    tables: tuple[tuple[int, ...], ...] = ()
    junction: int = 0
    grown_from: int = 0
    arrival: int = 0

    def __attrs_post_init__(self) -> None:
        self.tokens = self.prefill_len

    @property
    def rank(self) -> tuple[int, int]:
        """Priority, then arrival: the lowest is served first, the highest is preempted."""
        return self.request.priority, self.arrival

    def is_brought(self, behaviour: Behaviour) -> bool:
        """True if it takes what a connector has of it, and is to be answered."""
        return self.request.reads_cache or behaviour.loads_unread

    def valid_after_loss(self, start: int, end: int, block_size: int) -> int:
        """Its tokens that are there when the load of those from `start` to `end` is lost."""
        return int(valid_after_loss(start, end, self.if_lost, block_size))

    def receive(self, tokens: list[int]) -> None:
        """It gets these tokens, which were in flight when it was preempted."""
        self.outputs = np.concatenate((self.outputs, np.array(tokens, np.int64)))
        self.tokens = self.prefill_len = self.prefill_len + len(tokens)
        self.hit = None

    def again(self, outputs: Tensor) -> Self:
        """The request without its blocks, to recompute its prompt and `outputs`."""
        waiting = super().again(outputs)
        waiting.external, waiting.if_lost = self.external, self.if_lost
        waiting.arrival, waiting.unanswered = self.arrival, self.unanswered
        return waiting


class RankedQueue(WaitingQueue[RequestState]):
    """The waiting requests by priority, then arrival.

    Insertion and removal shift the entries behind, which is cheap for thousands of requests.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ranked: list[RequestState] = []

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._ranked)

    def __reversed__(self) -> Iterator[RequestState]:
        return reversed(self._ranked)

    def put_back(self, request: RequestState) -> None:
        """Insert the request by rank."""
        super().put_back(request)
        insort(self._ranked, request, key=_rank)

    def put_front(self, request: RequestState) -> None:
        """Insert a preempted request by rank, too."""
        self.put_back(request)

    def remove(self, request: RequestState) -> None:
        """Remove the request."""
        super().remove(request)
        del self._ranked[bisect_left(self._ranked, request.rank, key=_rank)]


def _rank(request: RequestState) -> tuple[int, int]:
    return request.rank
