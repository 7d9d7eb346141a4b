"""Decoding rows: each of them gets one token in every decode step.

The step in which a row starts a block, or ends, therefore follows from its length when it joined.
Rows are kept by these steps, so that a step looks only at the rows that it concerns.
"""

from collections.abc import Sequence
from typing import Generic, Self, TypeVar

import numpy as np
from attrs import define, field

from engine.core import requests
from engine.core.tensors import Tensor


@define(eq=False)
class RequestState(requests.RequestState):
    """A request from its arrival, or its last preemption, until it leaves; lengths in tokens.

    `start`: computed tokens of a decoding row less the decode steps so far, else None.
    """

    start: int | None = None


RowT = TypeVar("RowT", bound=RequestState)


@define(eq=False)
class Batch(Generic[RowT]):
    """Rows that decode together, in order; arrays [rows]. Joining and leaving make a new batch.

    - `starts`: computed tokens less the decode steps so far; `total`: their sum.
    - `outputs`: `starts` less the prompt length.
    - `slots`: the rows' places in `engine.core.requests.Slots`.
    - `prescribed`: indices of the rows whose requests prescribe their output tokens.
    """

    rows: tuple[RowT, ...]
    ids: tuple[str, ...]
    _columns: Tensor  # slots, starts and outputs
    total: int
    prescribed: list[int]
    slots: Tensor = field(init=False)
    starts: Tensor = field(init=False)
    outputs: Tensor = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.slots, self.starts, self.outputs = self._columns

    @classmethod
    def of(cls, rows: Sequence[RowT]) -> Self:
        """A batch of these rows."""
        columns = np.array([*map(_columns, rows)], np.int64).reshape(-1, 3).T
        ids = tuple(row.id for row in rows)
        return cls((*rows,), ids, columns, int(columns[1].sum()), requests.prescribed(rows))

    def with_row(self, row: RowT) -> Self:
        """The batch with one more row at its end."""
        own = _columns(row)
        columns = np.concatenate((self._columns, np.array(own, np.int64)[:, np.newaxis]), axis=1)
        prescribed = self.prescribed
        if row.request.output is not None:
            prescribed = [*prescribed, len(self.rows)]
        return type(self)(
            (*self.rows, row), (*self.ids, row.id), columns, self.total + own[1], prescribed
        )

    def without(self, place: int) -> Self:
        """The batch without the row at this place."""
        rows, ids, columns = self.rows, self.ids, self._columns
        left = rows[:place] + rows[place + 1 :]
        return type(self)(
            left,
            ids[:place] + ids[place + 1 :],
            np.concatenate((columns[:, :place], columns[:, place + 1 :]), axis=1),
            self.total - (rows[place].start or 0),
            requests.prescribed(left) if self.prescribed else [],
        )

    def computed(self, steps: int) -> int:
        """Computed tokens of all rows together after so many decode steps."""
        return self.total + steps * len(self.rows)


def _columns(row: RequestState) -> tuple[int, int, int]:
    """The slot of a decoding row, its computed tokens and its outputs, before any decode step."""
    assert row.start is not None, f"{row.id} does not decode"
    return row.slot, row.start, row.start - row.request.prompt_len


class DecodingRows(Generic[RowT]):
    """The decoding rows; `steps`: decode steps so far, `decoding`: number of decoding rows."""

    def __init__(self, block_size: int) -> None:
        """No row; `block_size` in tokens."""
        self.steps = 0
        self.decoding = 0
        self._block_size = block_size
        # Rows in the order of joining: by `start` modulo the block size, by the value of `steps`
        # with which they have sampled all their tokens, and by that with which they reach
        # `max_tokens`.
        self._by_offset: list[list[RowT]] = [[] for _ in range(block_size)]
        self._ending: dict[int, list[RowT]] = {}
        self._full: dict[int, list[RowT]] = {}

    def computed(self, row: RowT) -> int:
        """Number of the row's tokens whose keys and values are in the KV cache."""
        return row.computed if row.start is None else row.start + self.steps

    def of_length(self, remainder: int) -> list[RowT]:
        """Decoding rows whose length modulo the block size is `remainder`.

        The length counts the newest token, which is not computed yet.
        """
        return self._by_offset[(remainder - 1 - self.steps) % self._block_size]

    def ending(self) -> list[RowT]:
        """Decoding rows that have sampled all their tokens."""
        return [*self._ending.get(self.steps, ())]

    def full(self) -> list[RowT]:
        """Decoding rows that have reached `max_tokens`."""
        return [*self._full.get(self.steps, ())]

    def join(self, row: RowT) -> None:
        """The row decodes from now on: all its tokens but the newest are computed."""
        row.start = row.computed - self.steps
        self._by_offset[row.start % self._block_size].append(row)
        for by_steps, last in self._end_steps(row, row.start):
            by_steps.setdefault(last, []).append(row)
        self.decoding += 1

    def leave(self, row: RowT) -> None:
        """The row no longer decodes."""
        assert row.start is not None, f"{row.id} does not decode"
        start = row.start
        self._by_offset[start % self._block_size].remove(row)
        for by_steps, last in self._end_steps(row, start):
            by_steps[last].remove(row)
            if not by_steps[last]:
                del by_steps[last]
        row.computed, row.start = start + self.steps, None
        self.decoding -= 1

    def _end_steps(self, row: RowT, start: int) -> tuple[tuple[dict[int, list[RowT]], int], ...]:
        """The maps `_ending` and `_full`, each with the row's key there, a value of `steps`."""
        before_first = row.request.prompt_len - 1 - start
        ends = before_first + row.request.end, before_first + row.request.max_tokens
        return (self._ending, ends[0]), (self._full, ends[1])
