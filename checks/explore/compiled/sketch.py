"""States identified by 64-bit fingerprints; only states not expanded yet keep their words.

A state with the fingerprint of another state is mistaken for it and never expanded: the search
misses this state and all states reachable only through it. `chances_of_a_miss` estimates how
probable that is.
"""

from itertools import chain

import numpy as np
import numpy.typing as npt
from attrs import define, field

from checks.explore.compiled.edges import PARTITIONS, Edges, Hashes, Numbers
from checks.explore.compiled.jit import compiled, entry
from checks.explore.compiled.model import Words
from checks.explore.compiled.table import home

Fingerprints = npt.NDArray[np.uint64]

_ROWS, _FIRST_SLOTS = 1 << 12, 256
_MOST_TAKEN, _GROWTH = 0.92, 1.07  # of the slots of a partition
_FREE = np.uint64(0)
_INSTEAD_OF_FREE = np.uint64(1 << 63)  # of the same partition


@compiled
def put_fingerprint(slots: Fingerprints, fingerprint: np.uint64) -> np.int64:
    """Add a fingerprint; returns its slot, or -1 if it was there already."""
    if fingerprint == _FREE:
        fingerprint = _INSTEAD_OF_FREE
    slot = home(fingerprint, len(slots))
    while slots[slot] != _FREE:
        if slots[slot] == fingerprint:
            return np.int64(-1)
        slot += 1
        if slot == len(slots):
            slot = np.int64(0)
    slots[slot] = fingerprint
    return slot


@entry
def rehash(slots: Fingerprints, wider: Fingerprints) -> None:
    """Copy all fingerprints into a wider array of slots."""
    for fingerprint in slots:
        if fingerprint != _FREE:
            put_fingerprint(wider, fingerprint)


@entry
def sketched(
    slots: Fingerprints,
    edges: tuple[Hashes, Numbers, Numbers, Numbers],
    batches: int,
    partition: int,
) -> None:
    """Add the fingerprints of the target states of a partition, and count the new ones by batch.

    A first pass reads the slots where probing begins, as in the table.
    """
    hashes, starts, homes, new = edges
    for batch in range(batches):
        for edge in range(starts[batch, partition], starts[batch, partition + 1]):
            homes[edge] = np.int64(slots[home(hashes[edge], len(slots))])
    for batch in range(batches):
        first_time = 0
        for edge in range(starts[batch, partition], starts[batch, partition + 1]):
            homes[edge] = put_fingerprint(slots, hashes[edge])
            first_time += homes[edge] >= 0
        new[batch, partition] = first_time


@entry
def gathered(
    rows: Words, targets: Words, homes: Numbers, order: Numbers, first: int, last: int
) -> None:
    """Copy the new states of the edges from `first` to before `last`, in their order."""
    row = 0
    for place in range(first, last):
        edge = order[place]
        if homes[edge] >= 0:
            for word in range(rows.shape[1]):
                rows[row, word] = targets[edge, word]
            row += 1


@define
class Sketch:
    """Replaces `Table` where the states do not fit into memory; states have the same indices.

    `count`: states found. `forgotten`: number of the first states, whose words are dropped; the
    words of the others are in `blocks` of `_ROWS` rows. `sample`: number of states that `drawn`
    draws, with `seed`. `taken`: number of taken slots, by partition.
    """

    words: int
    seed: int = 0
    sample: int = 0
    count: int = 0
    forgotten: int = 0
    blocks: list[Words] = field(factory=list, init=False)
    slots: list[Fingerprints] = field(init=False)
    taken: Numbers = field(init=False)
    _random: np.random.Generator = field(init=False)
    _places: dict[int, tuple[int, Words]] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        steps = (_GROWTH ** (part / PARTITIONS) for part in range(PARTITIONS))
        # Different widths, so that partitions are not all widened at the same time.
        self.slots = [np.zeros(int(_FIRST_SLOTS * step), np.uint64) for step in steps]
        self.taken = np.zeros(PARTITIONS, np.int64)

    def window(self, first: int, last: int) -> tuple[Words, int]:
        """An array with the words of states `first` to before `last`, and the row of the first."""
        block, row = divmod(first - self.forgotten, _ROWS)
        last_block = (last - 1 - self.forgotten) // _ROWS
        if last_block == block:
            return self.blocks[block], row
        return np.concatenate(self.blocks[block : last_block + 1]), row

    def forget(self, before: int) -> None:
        """Drop the words of the states before this index, block by block."""
        while before - self.forgotten >= _ROWS:
            self._draw(_ROWS)
            self.blocks.append(self.blocks.pop(0))  # moved to the end, to be filled again
            self.forgotten += _ROWS

    def prepare(self, edges: Edges) -> None:
        """Nothing: `find` widens one partition at a time, so that memory is never doubled."""

    def find(self, edges: Edges, partition: int) -> None:
        """Add the fingerprints of a partition and mark the new states."""
        self._widen(partition, edges.most_to_a_partition())
        of_edges = edges.hashes, edges.starts, edges.homes, edges.new
        sketched(self.slots[partition], of_edges, edges.used, partition)

    def number(self, edges: Edges) -> None:
        """Number the new states, and make room for them."""
        self.taken += edges.new[: edges.used].sum(axis=0)
        self.count = edges.number_new(self.count)
        while len(self.blocks) * _ROWS < self.count - self.forgotten:
            self.blocks.append(np.zeros((_ROWS, self.words), np.int64))

    def keep(self, edges: Edges, batch: int) -> None:
        """Store the new states of a batch."""
        own, rows = edges.of_batch(batch), np.zeros((edges.new[batch].sum(), self.words), np.int64)
        gathered(rows, edges.targets, edges.homes, edges.order, own.start, own.stop)
        block, row = divmod(int(edges.firsts[batch]) - self.forgotten, _ROWS)
        while len(rows):
            some = rows[: _ROWS - row]
            self.blocks[block][row : row + len(some)] = some
            block, row, rows = block + 1, 0, rows[len(some) :]

    def drawn(self) -> dict[int, Words]:
        """A uniform random sample of the states, by index; call it once, after the search."""
        self.forget(self.count)
        self._draw(self.count - self.forgotten)
        return dict(self._places.values())

    @property
    def bytes_per_state(self) -> float:
        """Bytes of slots and words, free room included, divided by the number of states."""
        total_bytes = sum(array.nbytes for array in chain(self.slots, self.blocks))
        return total_bytes / max(self.count, 1)

    def _draw(self, states: int) -> None:
        """Reservoir sampling: draw among the next `states` states, those of the first block."""
        new = np.arange(self.forgotten, self.forgotten + states)
        places = np.where(new < self.sample, new, self._random.integers(0, new + 1))
        for row in np.flatnonzero(places < self.sample):
            self._places[int(places[row])] = int(new[row]), self.blocks[0][row].copy()

    def _widen(self, partition: int, more: int) -> None:
        """Make a partition wide enough for `more` further fingerprints."""
        slots, wanted = self.slots[partition], int(self.taken[partition]) + more
        if wanted > _MOST_TAKEN * len(slots):
            width = int(max(len(slots) * _GROWTH, wanted / _MOST_TAKEN + 1))
            self.slots[partition] = np.zeros(width, np.uint64)
            rehash(slots, self.slots[partition])


def chances_of_a_miss(states: int, edges: int) -> tuple[float, float]:
    """Two estimates of the probability that a state was missed, for 64-bit fingerprints.

    The first is an upper bound on the probability that any two states share a fingerprint. The
    second is TLC's estimate that a state found again was in truth a new one: the number of states
    times the number of edges that led to no new state.
    """
    return states**2 / 2**64, states * max(edges + 1 - states, 0) / 2**64
