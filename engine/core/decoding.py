"""Rows that decode: all of them get a token in every step.

So what a row needs, and when it ends, is known from its length when it joined them, and a step
looks only at the rows for which it is the one.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
from attrs import define, field

from engine.core import requests
from engine.core.tensors import Tensor


@define(eq=False)
class RequestState(requests.RequestState):
    """A request from its arrival, or its last preemption, until it leaves; lengths in tokens.

    `start`: of a row that decodes, its computed tokens less the decode steps so far.
    """

    start: int | None = None


RowT = TypeVar("RowT", bound=RequestState)


@define(eq=False)
class Batch(Generic[RowT]):
    """Rows that decode together, in order; arrays [rows].

    `starts`: their computed tokens less the decode steps so far. `outputs`: these less the prompt.
    `prescribed`: places of the rows whose requests say which tokens they sample.
    """

    rows: Sequence[RowT]
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


class DecodingRows(Generic[RowT]):
    """The rows that decode; `steps`: decode steps so far, `decoding`: how many rows there are."""

    def __init__(self, block_size: int) -> None:
        """No row; `block_size` in tokens."""
        self.steps = 0
        self.decoding = 0
        self._block_size = block_size
        # Rows, each list in the order of joining: by what is left of `start` in its block, and by
        # the number of steps with which they have all tokens that they sample, or may have.
        self._by_offset: list[list[RowT]] = [[] for _ in range(block_size)]
        self._ending: dict[int, list[RowT]] = {}
        self._full: dict[int, list[RowT]] = {}

    def computed(self, row: RowT) -> int:
        """Tokens of the row whose keys and values are in the cache."""
        return row.computed if row.start is None else row.start + self.steps

    def of_length(self, remainder: int) -> list[RowT]:
        """Rows that decode whose length, the newest token counted, has this place in its block.

        `remainder`: of the length divided by the block size.
        """
        return self._by_offset[(remainder - 1 - self.steps) % self._block_size]

    def ending(self) -> list[RowT]:
        """Rows that decode and have all tokens that they sample."""
        return [*self._ending.get(self.steps, ())]

    def full(self) -> list[RowT]:
        """Rows that decode and have all tokens that they may have."""
        return [*self._full.get(self.steps, ())]

    def join(self, row: RowT) -> None:
        """The row decodes from now on: only its newest token is not computed."""
        row.start = row.computed - self.steps
        self._by_offset[row.start % self._block_size].append(row)
        for by_steps, last in self._ends_of(row, row.start):
            by_steps.setdefault(last, []).append(row)
        self.decoding += 1

    def leave(self, row: RowT) -> None:
        """The row, which decodes, does so no longer."""
        assert row.start is not None, f"{row.id} does not decode"
        start = row.start
        self._by_offset[start % self._block_size].remove(row)
        for by_steps, last in self._ends_of(row, start):
            by_steps[last].remove(row)
            if not by_steps[last]:
                del by_steps[last]
        row.computed, row.start = start + self.steps, None
        self.decoding -= 1

    def _ends_of(self, row: RowT, start: int) -> tuple[tuple[dict[int, list[RowT]], int], ...]:
        """Where the row is kept by its ends, and under which steps."""
        before_first = row.request.prompt_len - 1 - start
        ends = before_first + row.request.end, before_first + row.request.max_tokens
        return (self._ending, ends[0]), (self._full, ends[1])
