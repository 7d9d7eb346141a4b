"""Running rows that all verify drafts: array operations for all of them at once.

Source: vllm-v1, "Speculative Decoding".
"""

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Self

import numpy as np
from attrs import define, field

from engine.core.requests import Slots, prescribed
from engine.core.scheduler import Ends
from engine.core.tensors import Flags, Tensor
from engine.vllm_v1.requests import RequestState


@define(eq=False)
class VerifyingRows:
    """Rows, front first, that have computed all but their newest token and have drafts behind it.

    Arrays [rows], lengths in tokens. As long as there is such an object its `computed` counts, and
    the rows have that of the last `write_back`.

    - `starts`: tokens that each row had computed when the rows last got different numbers of them.
      `ahead`: tokens that every row has computed since. `drafts`: of each row, to be verified.
    - `slots`: their places in the arrays of the admitted. `prompts`: lengths of their prompts.
    - `ends`: tokens that each row has once it has sampled all, `limits`: may have at most.
    - `room`: tokens that their blocks have slots for. `searchable`: tokens in blocks that lookups
      can find. Both are less `starts`.
    - `prescribed`: places of the rows whose requests say which tokens they sample.
    - `block_size`: slots of a block, in tokens.
    """

    rows: list[RequestState]
    ids: tuple[str, ...]
    starts: Tensor
    drafts: int
    slots: Tensor
    prompts: Tensor
    ends: Tensor
    limits: Tensor
    room: Tensor
    searchable: Tensor
    block_size: int
    ahead: int = field(default=0, init=False)
    prescribed: list[int] = field(init=False)
    # Of `starts`: tokens sampled, the longest row, tokens left to the one that ends first.
    _outputs: Tensor = field(init=False)
    _longest: int = field(init=False)
    _left: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.prescribed = prescribed(self.rows)
        if self.rows:
            self._start(self.starts)

    @classmethod
    def of(cls, rows: Sequence[RequestState], block_size: int) -> Self:
        """These rows, all of which have as many drafts."""

        def each(values: list[int]) -> Tensor:
            return np.array(values, np.int64)

        starts = each([row.computed for row in rows])
        prompts = each([row.request.prompt_len for row in rows])
        return cls(
            rows=[*rows],
            ids=tuple(row.id for row in rows),
            starts=starts,
            drafts=rows[0].drafts,
            slots=each([row.slot for row in rows]),
            prompts=prompts,
            ends=prompts + each([row.request.end for row in rows]),
            limits=prompts + each([row.request.max_tokens for row in rows]),
            room=each([len(row.blocks) for row in rows]) * block_size - starts,
            searchable=each([row.registered for row in rows]) * block_size - starts,
            block_size=block_size,
        )

    def without(self, gone: Flags) -> Self:
        """Those of the rows that are not `gone`, [rows], right after `compute`."""
        kept = ~gone
        return type(self)(
            rows=[*compress(self.rows, kept)],
            ids=tuple(compress(self.ids, kept)),
            starts=self.starts[kept],
            drafts=self.drafts,
            slots=self.slots[kept],
            prompts=self.prompts[kept],
            ends=self.ends[kept],
            limits=self.limits[kept],
            room=self.room[kept],
            searchable=self.searchable[kept],
            block_size=self.block_size,
        )

    @property
    def computed(self) -> Tensor:
        """Tokens of each row whose keys and values are cached, [rows]."""
        return self.starts + self.ahead

    def row_computed(self, place: int) -> int:
        """Tokens that the row at this place has computed."""
        return int(self.starts[place]) + self.ahead

    @property
    def longest(self) -> int:
        """The most that a row has computed, in tokens."""
        return self._longest + self.ahead

    def write_back(self) -> None:
        """Let the rows have their lengths and drafts."""
        for row, computed in zip(self.rows, self.computed.tolist(), strict=True):
            row.computed, row.tokens, row.drafts = computed, computed + 1, self.drafts

    def propose(self, drafts: int) -> None:
        """Each row has `count` drafts behind its newest token."""
        self.drafts = drafts

    def advance(self, tokens: int) -> None:
        """Each row has computed `count` more tokens."""
        self.ahead += tokens

    def compute(self, computed: Tensor) -> None:
        """Set the computed tokens of each row, [rows]."""
        more = computed - self.starts
        self.room, self.searchable = self.room - more, self.searchable - more
        self._start(computed)

    def _start(self, computed: Tensor) -> None:
        self.starts, self.ahead = computed, 0
        self._outputs = computed + 1 - self.prompts
        self._longest = int(computed.max())
        self._left = int((self.ends - computed).min()) - 1

    # --- their blocks -------------------------------------------------------------------------

    def crowded(self, tokens: int) -> list[int]:
        """Places of the rows without slots for `count` tokens behind the computed ones."""
        return _places(self.room < self.ahead + tokens)

    def full(self, uncomputed: int) -> list[int]:
        """Places of the rows with a block full of tokens that lookups cannot find yet.

        `uncomputed`: tokens that count besides the computed ones; 1 with the newest of each row.
        """
        return _places(self.searchable <= self.ahead + uncomputed - self.block_size)

    def grow(self, place: int, blocks: int) -> None:
        """The row at this place is handed `count` blocks."""
        self.room[place] += blocks * self.block_size

    def register(self, place: int, blocks: int) -> None:
        """Lookups find the first `count` blocks of the row at this place."""
        self.searchable[place] = blocks * self.block_size - self.starts[place]

    # --- what they sample ---------------------------------------------------------------------

    def note(self, slots: Slots, tokens: Tensor) -> None:
        """Each row sampled this token, [rows], as its next one."""
        slots.note(self.slots, self._outputs, 0, tokens)  # they count on from there

    @property
    def outputs(self) -> Tensor:
        """Tokens that each row has sampled, [rows]."""
        return self._outputs + self.ahead

    def none_ends(self, tokens: int) -> bool:
        """True if no row ends with its next `count` tokens."""
        return tokens < self._left - self.ahead

    def accepted(self, given: Mapping[str, int]) -> int | Tensor:
        """How many drafts of each row are verified: of all rows as many, or [rows].

        `given`: by request, of others none.
        """
        if not given:
            return 0
        counts = [min(given.get(name, 0), self.drafts) for name in self.ids]
        if len(different := {*counts}) == 1:
            return different.pop()
        return np.array(counts, np.int64)

    def due(self, accepted: int | Tensor, ends: Ends) -> tuple[Tensor, Flags]:
        """Tokens that each row gets with `accepted` drafts, and whether it ends with them.

        `ends`: rows that sample the end of sequence, which the others then do not; None: each where
        it says so.
        """
        most, tokens = accepted + 1, self.computed + 1
        if ends is None:
            left = np.maximum(self.ends - tokens, 1)
            return np.minimum(most, left), left <= most
        named = np.array([name in ends for name in self.ids])
        left = np.maximum(np.where(named, self.ends, self.limits) - tokens, 1)
        return np.minimum(most, left), named | (left <= most)


def _places(flags: Flags) -> list[int]:
    """Where the flags [rows] are set."""
    places: list[int] = np.flatnonzero(flags).tolist()
    return places
