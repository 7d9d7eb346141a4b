"""Arrays with a row for each request that decodes or is paused: block tables and sampled tokens.

Rows are handed out as slots and grow in number and width when needed, so that writing a step's
tokens is one operation however many rows there are.
"""

from collections.abc import Sequence

import numpy as np

from engine.core.tensors import Tensor

_FIRST_ROWS, _FIRST_COLUMNS = 8, 16


class Slots:
    """Row by slot: `tables` [slots, blocks] and `outputs` [slots, tokens]; the rest is unused."""

    def __init__(self) -> None:
        self.tables: Tensor = np.zeros((_FIRST_ROWS, _FIRST_COLUMNS), np.int64)
        self.outputs: Tensor = np.zeros((_FIRST_ROWS, _FIRST_COLUMNS), np.int64)
        self._free = list(range(_FIRST_ROWS))[::-1]

    def copy(self) -> "Slots":
        """The same arrays on their own."""
        twin = Slots()
        twin.tables, twin.outputs = self.tables.copy(), self.outputs.copy()
        twin._free = self._free[:]
        return twin

    def take(self, table: Sequence[int], outputs: Tensor, max_tokens: int) -> int:
        """A slot for a request with these blocks and tokens, which may get `max_tokens` of them."""
        if not self._free:
            self._add_rows()
        slot = self._free.pop()
        self.outputs = _widened(self.outputs, max_tokens)
        self.outputs[slot, : len(outputs)] = outputs
        self.write_blocks(slot, 0, table)
        return slot

    def give_back(self, slot: int) -> None:
        """The request that had the slot has left the batch."""
        self._free.append(slot)

    def write_blocks(self, slot: int, start: int, blocks: Sequence[int]) -> None:
        """The request's table holds `blocks` from index `start` on."""
        self.tables = _widened(self.tables, start + len(blocks))
        self.tables[slot, start : start + len(blocks)] = blocks

    def _add_rows(self) -> None:
        rows = len(self.tables)
        self.tables = np.concatenate([self.tables, np.zeros_like(self.tables)])
        self.outputs = np.concatenate([self.outputs, np.zeros_like(self.outputs)])
        self._free = list(range(rows, 2 * rows))[::-1]


def _widened(array: Tensor, columns: int) -> Tensor:
    """The array with at least so many columns, at least twice as many if it has to grow."""
    rows, present = array.shape
    if columns <= present:
        return array
    wider = np.zeros((rows, max(columns, 2 * present)), np.int64)
    wider[:, :present] = array
    return wider
