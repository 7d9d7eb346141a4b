"""States by fingerprints of 64 bits: a set of numbers, and the words of what is not expanded yet.

A state whose fingerprint another one has is taken for that one and never expanded: it is missed,
and what only it leads to. How probable that is, is in the answer (`chances_of_a_miss`).
"""

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
    """Add a fingerprint; its slot, or -1 if it is there."""
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
def moved(slots: Fingerprints, wider: Fingerprints) -> None:
    """Put what is in slots into wider ones."""
    for one in slots:
        if one != _FREE:
            put_fingerprint(wider, one)


@entry
def sketched(
    slots: Fingerprints,
    edges: tuple[Hashes, Numbers, Numbers, Numbers],
    batches: int,
    partition: int,
) -> None:
    """Add the fingerprints of the ends of the edges of a partition; note how many are new.

    Slots where searches begin are looked at first, as in the table.
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
    rows: Words, found: Words, homes: Numbers, order: Numbers, first: int, last: int
) -> None:
    """Write what is new of the edges from `first` to before `last`, in their order."""
    row = 0
    for place in range(first, last):
        edge = order[place]
        if homes[edge] >= 0:
            for word in range(rows.shape[1]):
                rows[row, word] = found[edge, word]
            row += 1


@define
class Sketch:
    """Stands for `Table` where exact states do not fit into memory; states are numbered as there.

    `count`: states found. `forgotten`: how many of them, the first, have no words any more; those
    of the others stand in `blocks` of as many rows each. `sample`: states that are `drawn`, with
    the seed. `taken`: slots, by partition.
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
        # Of different widths, so that they are not all widened at the same time.
        self.slots = [np.zeros(int(_FIRST_SLOTS * step), np.uint64) for step in steps]
        self.taken = np.zeros(PARTITIONS, np.int64)

    def window(self, first: int, last: int) -> tuple[Words, int]:
        """Words in which the states from `first` to before `last` stand, and where."""
        block, row = divmod(first - self.forgotten, _ROWS)
        ends_in = (last - 1 - self.forgotten) // _ROWS
        if ends_in == block:
            return self.blocks[block], row
        return np.concatenate(self.blocks[block : ends_in + 1]), row

    def forget(self, before: int) -> None:
        """Forget the words of the states before this one, block by block."""
        while before - self.forgotten >= _ROWS:
            self._draw(_ROWS)
            self.blocks.append(self.blocks.pop(0))  # behind the others, to be filled anew
            self.forgotten += _ROWS

    def prepare(self, edges: Edges) -> None:
        """Partitions are widened one by one, so that there is never much room twice."""

    def find(self, edges: Edges, partition: int) -> None:
        """Note what is new of the states of a partition at the end of edges."""
        self._widen(partition, edges.most_to_a_partition())
        of_edges = edges.hashes, edges.starts, edges.homes, edges.new
        sketched(self.slots[partition], of_edges, edges.used, partition)

    def number(self, edges: Edges) -> None:
        """Number what is new, and make room for it."""
        self.taken += edges.new[: edges.used].sum(axis=0)
        self.count = edges.number_new(self.count)
        while len(self.blocks) * _ROWS < self.count - self.forgotten:
            self.blocks.append(np.zeros((_ROWS, self.words), np.int64))

    def keep(self, edges: Edges, batch: int) -> None:
        """Put what is new of a batch where it belongs."""
        own, rows = edges.of_batch(batch), np.zeros((edges.new[batch].sum(), self.words), np.int64)
        gathered(rows, edges.found, edges.homes, edges.order, own.start, own.stop)
        block, row = divmod(int(edges.firsts[batch]) - self.forgotten, _ROWS)
        while len(rows):
            some = rows[: _ROWS - row]
            self.blocks[block][row : row + len(some)] = some
            block, row, rows = block + 1, 0, rows[len(some) :]

    def drawn(self) -> dict[int, Words]:
        """Some of all states, by number, each as likely as any other; asked for at the end."""
        self.forget(self.count)
        self._draw(self.count - self.forgotten)
        return dict(self._places.values())

    @property
    def bytes_per_state(self) -> float:
        """The slots and the words, room that is free included, for each state."""
        slots = sum(one.nbytes for one in self.slots)
        return (slots + sum(one.nbytes for one in self.blocks)) / max(self.count, 1)

    def _draw(self, states: int) -> None:
        """Draw among so many states from the first that has words: each so far is as likely."""
        new = np.arange(self.forgotten, self.forgotten + states)
        places = np.where(new < self.sample, new, self._random.integers(0, new + 1))
        for row in np.flatnonzero(places < self.sample):
            self._places[int(places[row])] = int(new[row]), self.blocks[0][row].copy()

    def _widen(self, partition: int, more: int) -> None:
        """Make sure that so many more fingerprints can be put into a partition."""
        slots, wanted = self.slots[partition], int(self.taken[partition]) + more
        if wanted > _MOST_TAKEN * len(slots):
            width = int(max(len(slots) * _GROWTH, wanted / _MOST_TAKEN + 1))
            self.slots[partition] = np.zeros(width, np.uint64)
            moved(slots, self.slots[partition])


def chances_of_a_miss(states: int, edges: int) -> tuple[float, float]:
    """How probable it is that a state was missed, two estimates for fingerprints of 64 bits.

    That any two of so many states have the same one, at most; and that a state which was found
    again was in truth another one, as TLC has it: states times edges that led to no new state. To
    the first state none leads.
    """
    return states**2 / 2**64, states * max(edges + 1 - states, 0) / 2**64
