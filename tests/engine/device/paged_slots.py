"""A paged device that knows nothing but slots: it refuses nothing, attends to them one by one."""

import numpy as np

from engine.core.tensors import Tensor
from engine.paged.inputs import PagedInput, PagedShape
from spec.core.requests import WORD, cached_value, sampled_token


class PagedSlotBySlotDevice:
    """Words by slot in a dict; of a slot never written nothing is added."""

    def __init__(self, shape: PagedShape) -> None:
        self._size = shape.block_size
        self._words: dict[int, int] = {}

    def compute(self, given: PagedInput) -> Tensor:
        """All tokens are written first, then each that samples attends to its row up to itself."""
        for slot, *token in zip(given.slot_mapping, given.token_ids, given.positions, strict=True):
            self._words[int(slot)] = cached_value(*map(int, token))
        return np.array([self._sampled(given, int(place)) for place in given.logits_indices])

    def _sampled(self, given: PagedInput, place: int) -> int:
        row = int(np.searchsorted(given.cu_seqlens_q, place, side="right")) - 1
        behind = int(given.cu_seqlens_q[row + 1]) - 1 - place  # tokens of the row after this one
        table, size = given.block_tables[row], self._size
        attended = range(int(given.context_lens[row]) - behind)
        slots = (int(table[at // size]) * size + at % size for at in attended)
        return sampled_token(sum(self._words.get(slot, 0) for slot in slots) & WORD)
