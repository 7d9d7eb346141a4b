"""The running queue of vLLM V1, in the order of admission."""

from operator import attrgetter
from typing import TypeAlias

from engine.core import decoding
from engine.core.decoding import DecodingRows
from engine.vllm_v1.requests import RequestState
from engine.vllm_v1.verifying import VerifyingRows

Batch: TypeAlias = decoding.Batch[RequestState]

_order = attrgetter("order")


class Running(DecodingRows[RequestState]):
    """The running queue, front first.

    A decoding row lacks only its newest token and has no drafts. The others compute the rest of
    their prompts, verify drafts, or got no turn in the last step. `members`: the rows; the lengths
    of verifying rows may be outdated, see `rows`.
    """

    def __init__(self, block_size: int) -> None:
        """No row; `block_size` in tokens."""
        super().__init__(block_size)
        self.members: list[RequestState] = []
        self._verifying: VerifyingRows | None = None  # all rows
        self._admitted = 0
        self._batch: Batch | None = None  # of the first rows, all of which decode

    @property
    def rows(self) -> list[RequestState]:
        """The rows with up-to-date lengths."""
        if self._verifying is not None:
            self._verifying.write_back()
        return self.members

    @property
    def all_decode(self) -> bool:
        """True if every row decodes."""
        return self.decoding == len(self.members)

    def verifying(self) -> VerifyingRows | None:
        """All rows, if each of them has drafts to verify, and all as many."""
        if self._verifying is None and self.members and self._have_as_many_drafts():
            self._verifying = VerifyingRows.of(self.members, self._block_size)
        return self._verifying

    def _have_as_many_drafts(self) -> bool:
        drafts = self.members[0].drafts
        return drafts > 0 and all(row.drafts == drafts for row in self.members)

    def verify(self, rows: VerifyingRows) -> None:
        """All rows, `rows`, verify drafts from now on."""
        self._verifying = rows if rows.rows else None

    def verify_no_longer(self) -> None:
        """Write the lengths back to the rows, which take turns from now on."""
        if self._verifying is not None:
            self._verifying.write_back()
            self._verifying = None

    @property
    def batch(self) -> Batch:
        """All rows, where all of them decode."""
        if self._batch is None or len(self._batch.rows) < len(self.members):
            self._batch = Batch.of(self.members)
        return self._batch

    def tokens(self, row: RequestState) -> int:
        """Prompt and sampled tokens of the row."""
        return row.tokens if row.start is None else row.start + self.steps + 1

    def in_order(self, rows: list[RequestState]) -> list[RequestState]:
        """These rows in queue order."""
        return sorted(rows, key=_order) if len(rows) > 1 else rows

    def append(self, row: RequestState) -> None:
        """A request that is admitted goes to the back."""
        self._admitted += 1
        row.order = self._admitted
        self.members.append(row)

    def remove(self, row: RequestState) -> None:
        """Remove the row."""
        self.verify_no_longer()
        place, batch = self.members.index(row), self._batch
        if batch is not None and place < len(batch.rows):
            batch = batch.without(place)
        if row.start is not None:
            self.leave(row)
        del self.members[place]
        self._batch = batch

    def join(self, row: RequestState) -> None:
        """The row decodes from now on."""
        super().join(row)
        if self._batch is not None:
            follows = row is self.members[len(self._batch.rows)]
            self._batch = self._batch.with_row(row) if follows else None

    def leave(self, row: RequestState) -> None:
        """The row does not decode any more."""
        super().leave(row)
        row.tokens = row.computed + 1
        self._batch = None
