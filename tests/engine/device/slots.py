"""A device that knows nothing but slots: it refuses nothing and attends to them one by one."""

from collections.abc import Iterable

import numpy as np

from engine.core.tensors import Tensor
from engine.spyre.device import DecodeInput, PrefillInput
from spec.core.requests import WORD, cached_value, sampled_token
from spec.spyre.config import SpyreConfig


class SlotBySlotDevice:
    """Words by slot in a dict; of a slot never written nothing is added."""

    def __init__(self, config: SpyreConfig) -> None:
        self._size = config.block_size
        self._words: dict[int, int] = {}

    def prefill(self, given: PrefillInput) -> Tensor:
        self._write(given.slot_mapping, given.token_ids, given.positions)
        if not given.is_last[0]:
            return np.array([], dtype=np.int64)
        masked = range(int(given.left_padding[0]), int(given.length[0]))
        return np.array([self._sampled(given.block_table[0], masked)])

    def decode(self, given: DecodeInput) -> Tensor:
        self._write(given.slot_mapping, given.token_ids, given.positions)
        rows = zip(given.block_table, given.left_padding, given.tkv, strict=True)
        return np.array([self._sampled(table, range(start, end)) for table, start, end in rows])

    def _write(self, slots: Tensor, tokens: Tensor, positions: Tensor) -> None:
        for slot, token, position in zip(slots, tokens, positions, strict=True):
            self._words[int(slot)] = cached_value(int(token), int(position))

    def _sampled(self, table: Tensor, attended: Iterable[int]) -> int:
        slots = (int(table[at // self._size]) * self._size + at % self._size for at in attended)
        return sampled_token(sum(self._words.get(slot, 0) for slot in slots) & WORD)
