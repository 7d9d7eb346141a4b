"""The running queue: its front is the batch of the next decode step."""

from typing import TypeAlias

from engine.core import decoding
from engine.core.decoding import DecodingRows, RequestState

Batch: TypeAlias = decoding.Batch[RequestState]


class Running(DecodingRows[RequestState]):
    """The running queue, front first; `steps`: decode steps so far."""

    def __init__(self, limit: int, block_size: int) -> None:
        """At most `limit` rows decode in a step; `block_size` in tokens."""
        super().__init__(block_size)
        self.rows: list[RequestState] = []
        self.batch: Batch = Batch.of(())  # rows of the next decode step, if none is preempted
        self._limit = limit

    def front(self, count: int) -> Batch:
        """The rows of the next decode step if only the first `count` of the queue are left."""
        if count >= self.decoding:
            return self.batch
        return Batch.of(self.rows[:count])

    def append(self, row: RequestState) -> None:
        """Add a prefilled row at the back."""
        self.rows.append(row)
        self._fill()

    def remove(self, row: RequestState) -> None:
        """Remove the row from any place in the queue."""
        place = self.rows.index(row)
        del self.rows[place]
        if row.start is None:
            return
        self.batch = self.batch.without(place)
        self.leave(row)
        self._fill()

    def _fill(self) -> None:
        """Let rows at the front join the batch, up to the limit."""
        for row in self.rows[self.decoding : self._limit]:
            self.join(row)
            self.batch = self.batch.with_row(row)
