"""The running queue: its front is the batch of the next decode step.

All rows of the batch get a token in every decode step. So what a row needs, and when it ends, is
known from its length when it joined, and a step looks only at the rows for which it is the one.
"""

from collections.abc import Sequence

import numpy as np
from attrs import define, field

from engine.core import requests
from engine.core.tensors import Tensor


@define(eq=False)
class RequestState(requests.RequestState):
    """A request from its arrival, or its last preemption, until it leaves; lengths in tokens.

    `start`: of a row of the batch, its computed tokens less the decode steps so far.
    """

    start: int | None = None


@define(eq=False)
class Batch:
    """Rows that decode together, in order; arrays [rows].

    `starts`: their computed tokens less the decode steps so far. `outputs`: these less the prompt.
    `prescribed`: places of the rows whose requests say which tokens they sample.
    """

    rows: Sequence[RequestState]
    ids: tuple[str, ...] = field(init=False)
    slots: Tensor = field(init=False)
    starts: Tensor = field(init=False)
    outputs: Tensor = field(init=False)
    prescribed: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        rows = self.rows
        self.ids = tuple(row.id for row in rows)
        self.slots = np.array([row.slot for row in rows], np.int64)
        self.starts = np.array([row.start for row in rows], np.int64)
        self.outputs = self.starts - np.array([row.request.prompt_len for row in rows], np.int64)
        self.prescribed = requests.prescribed(rows)


class Running:
    """The running queue, front first; `steps`: decode steps so far."""

    def __init__(self, limit: int, block_size: int) -> None:
        """At most `limit` rows decode in a step; `block_size` in tokens."""
        self.rows: list[RequestState] = []
        self.steps = 0
        self._limit = limit
        self._block_size = block_size
        self._decoding = 0
        self._batch: Batch | None = None
        # Rows of the batch, each list in their order: by what is left of `start` in its block, and
        # by the number of steps with which they have all tokens that they sample, or may have.
        self._by_offset: list[list[RequestState]] = [[] for _ in range(block_size)]
        self._ending: dict[int, list[RequestState]] = {}
        self._full: dict[int, list[RequestState]] = {}

    @property
    def batch(self) -> Batch:
        """The rows of the next decode step, if none is preempted."""
        if self._batch is None:
            self._batch = Batch(tuple(self.rows[: self._decoding]))
        return self._batch

    def front(self, count: int) -> Batch:
        """The rows of the next decode step if only so many of the queue are left."""
        if count >= self._decoding:
            return self.batch
        return Batch(tuple(self.rows[:count]))

    def computed(self, row: RequestState) -> int:
        """Tokens of the row whose keys and values are in the cache."""
        return row.computed if row.start is None else row.start + self.steps

    def of_length(self, remainder: int) -> list[RequestState]:
        """Rows of the batch whose length, the newest token counted, has this place in its block.

        `remainder`: of the length divided by the block size.
        """
        return self._by_offset[(remainder - 1 - self.steps) % self._block_size]

    def append(self, row: RequestState) -> None:
        """A row that was prefilled goes to the back."""
        self.rows.append(row)
        self._fill()

    def remove(self, row: RequestState) -> None:
        """The row leaves, from wherever it stands."""
        self.rows.remove(row)
        if row.start is None:
            return
        self._by_offset[row.start % self._block_size].remove(row)
        for by_steps, last in self._ends_of(row, row.start):
            by_steps[last].remove(row)
            if not by_steps[last]:
                del by_steps[last]
        row.computed, row.start = row.start + self.steps, None
        self._decoding -= 1
        self._batch = None
        self._fill()

    def _fill(self) -> None:
        """The rows at the front are the batch, up to the limit."""
        for row in self.rows[self._decoding : self._limit]:
            row.start = row.computed - self.steps
            self._by_offset[row.start % self._block_size].append(row)
            for by_steps, last in self._ends_of(row, row.start):
                by_steps.setdefault(last, []).append(row)
            self._decoding += 1
            self._batch = None

    def _ends_of(
        self, row: RequestState, start: int
    ) -> tuple[tuple[dict[int, list[RequestState]], int], ...]:
        """Where the row is kept by its ends, and under which steps."""
        before_first = row.request.prompt_len - 1 - start
        ends = before_first + row.request.end, before_first + row.request.max_tokens
        return (self._ending, ends[0]), (self._full, ends[1])

    def ending(self) -> list[RequestState]:
        """Rows of the batch that have all tokens that they sample."""
        return [*self._ending.get(self.steps, ())]

    def full(self) -> list[RequestState]:
        """Rows of the batch that have all tokens that they may have."""
        return [*self._full.get(self.steps, ())]
