"""Devices that know nothing but slots: they refuse nothing and attend to them one by one."""

from collections.abc import Iterable

import numpy as np
from attrs import define, field

from engine.core.tensors import Tensor
from engine.paged.inputs import PagedInput, PagedShape, Transfers
from engine.spyre.device import DecodeInput, PrefillInput
from spec.core.requests import WORD, cached_value, sampled_token
from spec.spyre.config import SpyreConfig


@define
class Slots:
    """Words by slot in a dict; of a slot never written nothing is added."""

    block_size: int
    words: dict[int, int] = field(factory=dict)

    def write(self, given: PrefillInput | DecodeInput | PagedInput) -> None:
        for slot, *token in zip(given.slot_mapping, given.token_ids, given.positions, strict=True):
            self.words[int(slot)] = cached_value(*map(int, token))

    def copy(self, pairs: Tensor) -> None:
        """Whole blocks at once; a slot that was never written takes the word of its target away."""
        size, before = self.block_size, dict(self.words)
        for source, target in pairs.tolist():
            for offset in range(size):
                self.words[target * size + offset] = before.get(source * size + offset, 0)

    def sampled(self, table: Tensor, attended: Iterable[int]) -> int:
        size = self.block_size
        slots = (int(table[at // size]) * size + at % size for at in attended)
        return sampled_token(sum(self.words.get(slot, 0) for slot in slots) & WORD)


class SlotBySlotDevice:
    """A device of Spyre."""

    def __init__(self, config: SpyreConfig) -> None:
        self._slots = Slots(config.block_size)

    def prefill(self, given: PrefillInput) -> Tensor:
        self._slots.write(given)
        if not given.is_last[0]:
            return np.array([], dtype=np.int64)
        masked = range(int(given.left_padding[0]), int(given.length[0]))
        return np.array([self._slots.sampled(given.block_table[0], masked)])

    def decode(self, given: DecodeInput) -> Tensor:
        self._slots.write(given)
        rows = zip(given.block_table, given.left_padding, given.tkv, strict=True)
        return np.array([self._slots.sampled(row, range(start, end)) for row, start, end in rows])


class PagedSlotBySlotDevice:
    """A paged device; slots of the CPU have negative numbers."""

    def __init__(self, shape: PagedShape) -> None:
        self._slots = Slots(shape.block_size)

    def transfer(self, given: Transfers) -> None:
        for pairs, signs in (
            (given.swaps_out, (1, -1)),
            (given.swaps_in, (-1, 1)),
            (given.copies, (1, 1)),
        ):
            self._slots.copy(pairs * signs)

    def compute(self, given: PagedInput) -> Tensor:
        """All tokens are written first, then each that samples attends to its row up to itself."""
        self._slots.write(given)
        return np.array([self._sampled(given, int(place)) for place in given.logits_indices])

    def _sampled(self, given: PagedInput, place: int) -> int:
        row = int(np.searchsorted(given.cu_seqlens_q, place, side="right")) - 1
        behind = int(given.cu_seqlens_q[row + 1]) - 1 - place  # tokens of the row after this one
        attended = range(int(given.context_lens[row]) - behind)
        return self._slots.sampled(given.block_tables[row], attended)
