"""Running rows that all verify drafts: what a step does with them is worked out for all at once.

Source: vllm-v1, "Speculative Decoding".
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any, Self

import numpy as np
from attrs import define, field

from engine.core.requests import prescribed
from engine.core.scheduler import Ends
from engine.core.tensors import Flags, Tensor
from engine.vllm_v1.requests import RequestState


@define(eq=False)
class VerifyingRows:
    """Rows, front first, that have computed all but their newest token and have drafts behind it.

    Arrays [rows], lengths in tokens. As long as there is such an object its `computed` counts, and
    the rows have that of the last `write_back`.

    - `computed`: whose keys and values are cached. `drafts`: of each row, to be verified.
    - `slots`: their places in the arrays of the admitted. `prompts`: lengths of their prompts.
    - `ends`: tokens that each row has once it has sampled all, `limits`: may have at most.
    - `room`: tokens that their blocks have slots for. `registered`: blocks that lookups can find.
    - `prescribed`: places of the rows whose requests say which tokens they sample.
    """

    rows: list[RequestState]
    ids: tuple[str, ...]
    computed: Tensor
    drafts: int
    slots: Tensor
    prompts: Tensor
    ends: Tensor
    limits: Tensor
    room: Tensor
    registered: Tensor
    prescribed: list[int] = field(init=False)
    _is_written: bool = field(default=True, init=False)

    def __attrs_post_init__(self) -> None:
        self.prescribed = prescribed(self.rows)

    @classmethod
    def of(cls, rows: Sequence[RequestState], block_size: int) -> Self:
        """These rows, all of which have as many drafts."""

        def each(values: list[int]) -> Tensor:
            return np.array(values, np.int64)

        prompts = each([row.request.prompt_len for row in rows])
        return cls(
            rows=[*rows],
            ids=tuple(row.id for row in rows),
            computed=each([row.computed for row in rows]),
            drafts=rows[0].drafts,
            slots=each([row.slot for row in rows]),
            prompts=prompts,
            ends=prompts + each([row.request.end for row in rows]),
            limits=prompts + each([row.request.max_tokens for row in rows]),
            room=each([len(row.blocks) for row in rows]) * block_size,
            registered=each([row.registered for row in rows]),
        )

    def before(self, others: Self) -> Self:
        """These rows and others behind them."""
        rows, ids = self.rows + others.rows, self.ids + others.ids
        return self._like(rows, ids, lambda name: np.concatenate([self[name], others[name]]))

    def without(self, gone: Flags) -> Self:
        """Those of the rows that are not `gone`, [rows]."""
        kept = ~gone
        rows, ids = [*compress(self.rows, kept)], tuple(compress(self.ids, kept))
        return self._like(rows, ids, lambda name: self[name][kept])

    def _like(
        self, rows: list[RequestState], ids: tuple[str, ...], array: Callable[[str], Tensor]
    ) -> Self:
        arrays: dict[str, Any] = {name: array(name) for name in _ARRAYS}
        return type(self)(rows=rows, ids=ids, drafts=self.drafts, **arrays)

    def __getitem__(self, name: str) -> Tensor:
        """The array of this name."""
        array: Tensor = getattr(self, name)
        return array

    def write_back(self) -> None:
        """Let the rows have their lengths and drafts."""
        if not self._is_written:
            for row, computed in zip(self.rows, self.computed.tolist(), strict=True):
                row.computed, row.tokens, row.drafts = computed, computed + 1, self.drafts
            self._is_written = True

    def compute(self, computed: Tensor, drafts: int) -> None:
        """So many tokens of each row are computed now, and so many drafts are behind the next."""
        self.computed, self.drafts, self._is_written = computed, drafts, False

    def full_places(self, block_size: int) -> list[int]:
        """Places of the rows with a block full of tokens that lookups cannot find yet."""
        full = (self.computed + 1) // block_size > self.registered
        places: list[int] = np.flatnonzero(full).tolist()
        return places

    def accepted(self, given: Mapping[str, int] | None, most: int | None) -> Tensor:
        """How many drafts of each row are verified, [rows].

        `given`: by request, of others none; None: all, but `most` of them where that is a number.
        """
        if given is None:
            count = self.drafts if most is None else min(most, self.drafts)
            return np.full(len(self.rows), count)
        return np.array([min(given.get(name, 0), self.drafts) for name in self.ids], np.int64)

    def due(self, accepted: Tensor, ends: Ends) -> tuple[Tensor, Flags]:
        """Tokens that each row gets with so many drafts accepted, and whether it ends with them.

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


_ARRAYS = ("computed", "slots", "prompts", "ends", "limits", "room", "registered")
