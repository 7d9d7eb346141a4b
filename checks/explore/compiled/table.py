"""The states in the order of discovery, and a hash table over them.

The slots of the table are partitioned by the hash of a state. A lookup touches one partition only,
so that cores share the work. In a round of edges `find` marks the new target states of each
partition, `number` then numbers them in the order of edges, and `keep` stores the new states of
each batch.
"""

from random import Random

import numpy as np
import numpy.typing as npt
from attrs import define, field

from checks.explore.compiled.edges import (
    PARTITIONS,
    Edges,
    Hashes,
    Numbers,
    hashed,
    partition_index,
)
from checks.explore.compiled.jit import compiled, entry
from checks.explore.compiled.model import Words

Indices = npt.NDArray[np.uint32]

_FIRST_SLOTS = 256
_FIRST_ROWS = 1 << 10
_MOST_TAKEN, _GROWTH = 0.75, 1.5  # of the slots of a partition
_HALF = np.uint64(32)


@compiled
def home(hash_of_state: np.uint64, slots: int) -> np.int64:
    """The slot where probing begins; it grows with the hash, so that rehashing fills in order."""
    return np.int64(((hash_of_state >> _HALF) * np.uint64(slots)) >> _HALF)


@compiled
def is_same(states: Words, index: np.int64, words: Words) -> bool:
    """True if the state at this index consists of these words."""
    for place in range(len(words)):  # noqa: SIM110
        if states[index, place] != words[place]:
            return False
    return True


@entry
def mark_new(
    states: Words,
    count: int,
    slots: Indices,
    edges: tuple[Words, Hashes, Numbers, Numbers, Numbers],
    batches: int,
    partition: int,
) -> None:
    """Mark the new target states among the edges of a partition, and count them by batch.

    A slot holds the index of a state plus 1, or 0 if it is free. The slot of a new state that is
    not numbered yet holds `count` plus the index of the first edge to it, plus 1. A first pass
    reads the slots where probing begins, so that the memory fetches them all at once.
    """
    targets, hashes, starts, homes, new = edges
    for batch in range(batches):
        for edge in range(starts[batch, partition], starts[batch, partition + 1]):
            homes[edge] = slots[home(hashes[edge], len(slots))]
    for batch in range(batches):
        first_time = 0
        for edge in range(starts[batch, partition], starts[batch, partition + 1]):
            slot = home(hashes[edge], len(slots))
            while slots[slot] != 0:
                existing = np.int64(slots[slot]) - 1
                if existing < count:
                    if is_same(states, existing, targets[edge]):
                        break
                elif is_same(targets, existing - count, targets[edge]):
                    break
                slot += 1
                if slot == len(slots):
                    slot = np.int64(0)
            if slots[slot] == 0:
                slots[slot] = count + edge + 1
                homes[edge] = slot
                first_time += 1
            else:
                homes[edge] = -1
        new[batch, partition] = first_time


@entry
def store_new(
    states: Words,
    parents: Indices,
    slots: Indices,
    edges: tuple[Words, Numbers, Hashes, Numbers, Numbers],
    first: int,
    last: int,
    number: int,
) -> None:
    """Store the new states of edges `first` to before `last`, numbered from `number` on."""
    targets, sources, hashes, homes, order = edges
    for place in range(first, last):
        edge = order[place]
        if homes[edge] >= 0:
            for word in range(states.shape[1]):
                states[number, word] = targets[edge, word]
            parents[number] = sources[edge]
            number += 1
            slots[partition_index(hashes[edge]), homes[edge]] = number


@entry
def find_indices(
    states: Words,
    slots: Indices,
    edges: tuple[Words, Numbers, Hashes, Numbers],
    partition: int,
    indices: Indices,
) -> None:
    """Write the indices of a partition's states, which all exist, at the sources of their edges."""
    targets, sources, hashes, starts = edges
    for edge in range(starts[0, partition], starts[0, partition + 1]):
        slot = home(hashes[edge], len(slots))
        while not is_same(states, np.int64(slots[slot]) - 1, targets[edge]):
            slot += 1
            if slot == len(slots):
                slot = np.int64(0)
        indices[sources[edge]] = slots[slot] - 1


@entry
def rehash(states: Words, slots: Indices, wider: Indices) -> None:
    """Copy all entries into a wider array of slots."""
    for taken in slots:
        if taken != 0:
            slot = home(hashed(states[np.int64(taken) - 1]), len(wider))
            while wider[slot] != 0:
                slot += 1
                if slot == len(wider):
                    slot = np.int64(0)
            wider[slot] = taken


@define
class Table:
    """The states in the order of discovery: their words, and the indices of their parents.

    The parent of a state is the state it was found from; the first is its own parent. Indices have
    32 bits. `sample`: number of states that `drawn` draws, with `seed`. `slots`: by partition, at
    most three quarters of them taken. `narrower`: the previous slots during a rehash.
    """

    words: int
    seed: int = 0
    sample: int = 0
    count: int = 0
    states: Words = field(init=False)
    parents: Indices = field(init=False)
    slots: Indices = field(init=False)
    narrower: Indices | None = field(default=None, init=False)
    taken: Numbers = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.slots = np.zeros((PARTITIONS, _FIRST_SLOTS), np.uint32)
        self.taken = np.zeros(PARTITIONS, np.int64)
        self.states = np.zeros((_FIRST_ROWS, self.words), np.int64)
        self.parents = np.zeros(_FIRST_ROWS, np.uint32)

    def window(self, first: int, _last: int) -> tuple[Words, int]:
        """An array that holds the words of the states from `first` on, and the row of the first."""
        return self.states, first

    def forget(self, before: int) -> None:
        """Nothing: a table keeps the words of all states."""

    def prepare(self, edges: Edges) -> None:
        """Make the slots wide enough for the target states of the edges."""
        wanted = int(self.taken.max()) + edges.most_to_a_partition()
        width = self.slots.shape[1]
        if wanted > _MOST_TAKEN * width:
            self.narrower = self.slots
            width = int(max(width * _GROWTH, wanted / _MOST_TAKEN + 1))
            self.slots = np.zeros((PARTITIONS, width), np.uint32)

    def find(self, edges: Edges, partition: int) -> None:
        """Mark the new target states of a partition."""
        slots = self.slots[partition]
        if self.narrower is not None:
            rehash(self.states, self.narrower[partition], slots)
        of_edges = edges.targets, edges.hashes, edges.starts, edges.homes, edges.new
        mark_new(self.states, self.count, slots, of_edges, edges.used, partition)

    def number(self, edges: Edges) -> None:
        """Number the new states, and make room for them."""
        self.narrower = None
        self.taken += edges.new[: edges.used].sum(axis=0)
        self.count = edges.number_new(self.count)
        self._make_room(self.count)

    def keep(self, edges: Edges, batch: int) -> None:
        """Store the new states of a batch."""
        own, number = edges.of_batch(batch), int(edges.firsts[batch])
        of_edges = edges.targets, edges.sources, edges.hashes, edges.homes, edges.order
        store_new(self.states, self.parents, self.slots, of_edges, own.start, own.stop, number)

    def append(self, states: Words, parents: Indices) -> None:
        """Add states that are not in the table yet, each with the index of its parent."""
        edges = Edges.to(states, parents.astype(np.int64))
        self.prepare(edges)
        for partition in range(PARTITIONS):
            self.find(edges, partition)
        self.number(edges)
        self.keep(edges, 0)

    def indices(self, states: Words) -> Indices:
        """The indices of states, which must all be in the table."""
        edges, indices = Edges.to(states, np.arange(len(states))), np.zeros(len(states), np.uint32)
        for partition, slots in enumerate(self.slots):
            of_edges = edges.targets, edges.sources, edges.hashes, edges.starts
            find_indices(self.states, slots, of_edges, partition, indices)
        return indices

    def drawn(self) -> dict[int, Words]:
        """A uniform random sample of the states, by index."""
        indices = Random(self.seed).sample(range(self.count), min(self.sample, self.count))
        return {index: self.states[index] for index in indices}

    def route(self, index: int) -> list[Words]:
        """The states on the path to this one, from the initial one on."""
        ancestors = [index]
        while ancestors[-1] != 0:
            ancestors.append(int(self.parents[ancestors[-1]]))
        return [self.states[ancestor].copy() for ancestor in reversed(ancestors)]

    @property
    def bytes_per_state(self) -> float:
        """Bytes of all arrays, free room included, divided by the number of states."""
        kept = self.states.nbytes + self.parents.nbytes + self.slots.nbytes
        return kept / max(self.count, 1)

    def _make_room(self, states: int) -> None:
        """Make room for this number of states."""
        if states > len(self.states):
            rows = states * 9 // 8
            self.states.resize((rows, self.words), refcheck=False)
            self.parents.resize(rows, refcheck=False)
