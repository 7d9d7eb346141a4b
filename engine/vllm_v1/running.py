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

    Some of its rows decode: they lack their newest token only and have no drafts. The others
    compute what is left of their prompts, verify drafts, or could not decode in the last step.
    `members`: the rows, of which those that verify drafts may not have their lengths.
    """

    def __init__(self, block_size: int) -> None:
        """No row; `block_size` in tokens."""
        super().__init__(block_size)
        self.members: list[RequestState] = []
        self._verifying: VerifyingRows | None = None  # all rows
        self._admitted = 0
        self._batch: Batch | None = None  # made once, until a row joins or leaves the queue

    @property
    def rows(self) -> list[RequestState]:
        """The rows, each with its lengths."""
        if self._verifying is not None:
            self._verifying.write_back()
        return self.members

    @property
    def all_decode(self) -> bool:
        """True if there is no row that does not decode."""
        return self.decoding == len(self.members)

    def verifying(self) -> VerifyingRows | None:
        """All rows, if each of them has drafts to verify."""
        if self._verifying is None and self.members and all(row.drafts for row in self.members):
            self._verifying = VerifyingRows.of(self.members, self._block_size)
        return self._verifying

    def verify(self, rows: VerifyingRows) -> None:
        """These rows, which are all, verify drafts from now on."""
        self._verifying = rows if rows.rows else None

    def verify_no_longer(self) -> None:
        """Each row has its lengths itself."""
        if self._verifying is not None:
            self._verifying.write_back()
            self._verifying = None

    @property
    def batch(self) -> Batch:
        """All rows, where all of them decode."""
        if self._batch is None:
            self._batch = Batch(tuple(self.members))
        return self._batch

    def tokens(self, row: RequestState) -> int:
        """Prompt and sampled tokens of the row: what it has computed has to catch up with."""
        return row.tokens if row.start is None else row.start + self.steps + 1

    def in_order(self, rows: list[RequestState]) -> list[RequestState]:
        """Some of the rows as they stand in the queue."""
        return sorted(rows, key=_order) if len(rows) > 1 else rows

    def append(self, row: RequestState) -> None:
        """A request that is admitted goes to the back."""
        self._admitted += 1
        row.order = self._admitted
        self.members.append(row)

    def remove(self, row: RequestState) -> None:
        """The row leaves, from wherever it stands."""
        self.verify_no_longer()
        if row.start is not None:
            self.leave(row)
        self.members.remove(row)
        self._batch = None

    def join(self, row: RequestState) -> None:
        """The row decodes from now on: only its newest token is not computed."""
        super().join(row)
        self._batch = None

    def leave(self, row: RequestState) -> None:
        """The row, which decodes, does so no longer."""
        super().leave(row)
        row.tokens = row.computed + 1
