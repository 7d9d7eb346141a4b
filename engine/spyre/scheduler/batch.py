"""The rows of the decode batch, or those that are paused, as arrays of integers.

Who is in it never changes: joining and leaving make a new batch. What a step changes, the computed
tokens and the padding, is written in place.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from engine.core.tensors import Tensor
from engine.spyre.scheduler.tracked import Tracked
from spec.spyre.admission import Member

_FIELDS = 8
_NEVER = 2**62


class Batch:
    """Rows in batch order; arrays [rows], lengths in tokens.

    - `computed`: tokens in the KV cache.
    - `left_padding`: of the row's last decode step.
    - `ends_at`, `full_at`: computed tokens with which the request has all tokens that it will
      sample, and all that it may have.
    - `prefill_len`, `prompt_len`: as in `Tracked` and `Request`.
    - `slot`: the row's place in `Slots`.
    - `waited_steps`: decode steps since it was paused.

    `tkv` is that of the last decode step of exactly these rows, 0 before the first. `steps_to_end`
    and `steps_to_full` are decode steps until the first row reaches `ends_at` and `full_at`.
    `table` [rows, width]: the padded one that the device was last given of exactly these rows.
    """

    def __init__(self, members: Sequence[Tracked], matrix: Tensor) -> None:
        """`matrix` [fields, rows] becomes the batch's own."""
        self.members = members
        self.matrix = matrix
        (
            self.computed,
            self.left_padding,
            self.ends_at,
            self.full_at,
            self.prefill_len,
            self.prompt_len,
            self.slot,
            self.waited_steps,
        ) = matrix
        self.tkv = 0
        self.table: Tensor | None = None
        self.steps_to_end = int((self.ends_at - self.computed).min(initial=_NEVER))
        self.steps_to_full = int((self.full_at - self.computed).min(initial=_NEVER))
        self._ids: tuple[str, ...] | None = None
        self._prescribed: list[int] | None = None

    @staticmethod
    def empty() -> "Batch":
        """No row."""
        return Batch((), np.empty((_FIELDS, 0), np.int64))

    def copy(self, copies: Mapping[Tracked, Tracked]) -> "Batch":
        """The same rows of the requests' copies."""
        twin = Batch([copies[member] for member in self.members], self.matrix.copy())
        twin.tkv = self.tkv
        return twin

    def __len__(self) -> int:
        return len(self.members)

    @property
    def ids(self) -> tuple[str, ...]:
        """The requests' names in batch order."""
        if self._ids is None:
            self._ids = tuple(member.id for member in self.members)
        return self._ids

    def generated(self) -> Tensor:
        """Tokens that each row has sampled: its newest one is not cached."""
        generated: Tensor = self.computed - self.prompt_len + 1
        return generated

    def as_members(self) -> list[Member]:
        """The rows as the admission rules of the specification take them."""
        remaining = (self.full_at - self.computed).tolist()
        return [Member(*pair) for pair in zip(self.computed.tolist(), remaining, strict=True)]

    @property
    def prescribed(self) -> list[int]:
        """Rows whose requests say which tokens they sample."""
        if self._prescribed is None:
            members = enumerate(self.members)
            self._prescribed = [row for row, one in members if one.request.output is not None]
        return self._prescribed

    def advance(self, tkv: int) -> None:
        """Every row has computed one more token, in a step of this tkv."""
        self.tkv = tkv
        self.computed += 1
        self.steps_to_end -= 1
        self.steps_to_full -= 1

    def with_front(self, newcomer: Tracked) -> "Batch":
        """The batch with a request in front that has just computed its prefill."""
        request = newcomer.request
        last = request.prompt_len - 1
        own = [
            newcomer.prefill_len,
            0,
            last + request.end,
            last + request.max_tokens,
            newcomer.prefill_len,
            request.prompt_len,
            newcomer.slot,
            0,
        ]
        column = np.array(own, np.int64).reshape(_FIELDS, 1)
        return Batch((newcomer, *self.members), np.concatenate([column, self.matrix], axis=1))

    def of_rows(self, rows: Sequence[int]) -> "Batch":
        """These rows only, in this order."""
        return Batch([self.members[row] for row in rows], self.matrix[:, list(rows)])

    def without(self, rows: Sequence[int]) -> "Batch":
        """The batch without these rows."""
        gone = set(rows)
        return self.of_rows([row for row in range(len(self)) if row not in gone])

    def followed_by(self, other: "Batch") -> "Batch":
        """The rows of both, the other's behind."""
        members = (*self.members, *other.members)
        return Batch(members, np.concatenate([self.matrix, other.matrix], axis=1))
