"""States in the order in which they were found, and a hash table to find them again.

The slots of the table are in partitions, by the hash of a state: the states of one partition are
looked up without a look at any other, so that cores share the work. In a round of edges `find`
notes for each partition what is new among their ends, and `keep` puts what is new in each batch
where it belongs; in between `number` gives it numbers in the order of edges, whatever partition it
is in.
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
    partition_of,
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
    """The slot where a search begins. Larger hashes have later ones: wider slots fill in order."""
    return np.int64(((hash_of_state >> _HALF) * np.uint64(slots)) >> _HALF)


@compiled
def is_same(states: Words, index: np.int64, words: Words) -> bool:
    """True if the state at this index consists of these words."""
    for place in range(len(words)):  # noqa: SIM110
        if states[index, place] != words[place]:
            return False
    return True


@entry
def found_in_slots(
    states: Words,
    count: int,
    slots: Indices,
    edges: tuple[Words, Hashes, Numbers, Numbers, Numbers],
    batches: int,
    partition: int,
) -> None:
    """Note which ends of the edges of a partition are no states yet, and how many of each batch.

    A slot holds the number of a state plus 1, or 0; from here on until it is numbered, `count` plus
    the number of the first edge to it, plus 1. Slots where searches begin are looked at first: the
    memory is asked for all of them at once.
    """
    found, hashes, starts, homes, new = edges
    for batch in range(batches):
        for edge in range(starts[batch, partition], starts[batch, partition + 1]):
            homes[edge] = slots[home(hashes[edge], len(slots))]
    for batch in range(batches):
        first_time = 0
        for edge in range(starts[batch, partition], starts[batch, partition + 1]):
            slot = home(hashes[edge], len(slots))
            while slots[slot] != 0:
                known = np.int64(slots[slot]) - 1
                if known < count:
                    if is_same(states, known, found[edge]):
                        break
                elif is_same(found, known - count, found[edge]):
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
def kept_in_slots(
    states: Words,
    parents: Indices,
    slots: Indices,
    edges: tuple[Words, Numbers, Hashes, Numbers, Numbers],
    first: int,
    last: int,
    number: int,
) -> None:
    """Put what is new of the edges from `first` to before `last` at numbers from `number` on."""
    found, sources, hashes, homes, order = edges
    for place in range(first, last):
        edge = order[place]
        if homes[edge] >= 0:
            for word in range(states.shape[1]):
                states[number, word] = found[edge, word]
            parents[number] = sources[edge]
            number += 1
            slots[partition_of(hashes[edge]), homes[edge]] = number


@entry
def looked_up(
    states: Words,
    slots: Indices,
    edges: tuple[Words, Numbers, Hashes, Numbers],
    partition: int,
    indices: Indices,
) -> None:
    """Write the index of each state of a partition in a batch, all known, at its edge's source."""
    found, sources, hashes, starts = edges
    for edge in range(starts[0, partition], starts[0, partition + 1]):
        slot = home(hashes[edge], len(slots))
        while not is_same(states, np.int64(slots[slot]) - 1, found[edge]):
            slot += 1
            if slot == len(slots):
                slot = np.int64(0)
        indices[sources[edge]] = slots[slot] - 1


@entry
def moved(states: Words, slots: Indices, wider: Indices) -> None:
    """Put what is in slots into wider ones."""
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
    """The states found, their words and the index of the state that each was found from.

    The first is its own parent. There can be as many as 32 bits number. `sample`: states that are
    `drawn`, with the seed. `slots`: by partition; while partitions are moved, `narrower`: those
    that were too few. Of the slots of a partition at most three quarters are taken.
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
        """Words in which the states from `first` on stand, and where."""
        return self.states, first

    def forget(self, before: int) -> None:
        """States are kept for ever here."""

    def prepare(self, edges: Edges) -> None:
        """Make sure that the ends of edges fit into the slots."""
        wanted = int(self.taken.max()) + edges.most_to_a_partition()
        width = self.slots.shape[1]
        if wanted > _MOST_TAKEN * width:
            self.narrower = self.slots
            width = int(max(width * _GROWTH, wanted / _MOST_TAKEN + 1))
            self.slots = np.zeros((PARTITIONS, width), np.uint32)

    def find(self, edges: Edges, partition: int) -> None:
        """Note what is new of the states of a partition at the end of edges."""
        slots = self.slots[partition]
        if self.narrower is not None:
            moved(self.states, self.narrower[partition], slots)
        of_edges = edges.found, edges.hashes, edges.starts, edges.homes, edges.new
        found_in_slots(self.states, self.count, slots, of_edges, edges.used, partition)

    def number(self, edges: Edges) -> None:
        """Number what is new, and make room for it."""
        self.narrower = None
        self.taken += edges.new[: edges.used].sum(axis=0)
        self.count = edges.number_new(self.count)
        self._make_room(self.count)

    def keep(self, edges: Edges, batch: int) -> None:
        """Put what is new of a batch where it belongs."""
        own, number = edges.of_batch(batch), int(edges.firsts[batch])
        of_edges = edges.found, edges.sources, edges.hashes, edges.homes, edges.order
        kept_in_slots(self.states, self.parents, self.slots, of_edges, own.start, own.stop, number)

    def append(self, states: Words, parents: Indices) -> None:
        """Add states that are known to be new, each found from the state with this number."""
        edges = Edges.to(states, parents.astype(np.int64))
        self.prepare(edges)
        for partition in range(PARTITIONS):
            self.find(edges, partition)
        self.number(edges)
        self.keep(edges, 0)

    def indices(self, states: Words) -> Indices:
        """The indices of states, all of which are known."""
        edges, indices = Edges.to(states, np.arange(len(states))), np.zeros(len(states), np.uint32)
        for partition, slots in enumerate(self.slots):
            of_edges = edges.found, edges.sources, edges.hashes, edges.starts
            looked_up(self.states, slots, of_edges, partition, indices)
        return indices

    def drawn(self) -> dict[int, Words]:
        """Some of all states, by number, each as likely as any other."""
        some = Random(self.seed).sample(range(self.count), min(self.sample, self.count))
        return {index: self.states[index] for index in some}

    def way_to(self, index: int) -> list[Words]:
        """The states by which this one was found, from the first on."""
        way = [index]
        while way[-1] != 0:
            way.append(int(self.parents[way[-1]]))
        return [self.states[one].copy() for one in reversed(way)]

    @property
    def bytes_per_state(self) -> float:
        """What is kept, room that is free included, for each state."""
        kept = self.states.nbytes + self.parents.nbytes + self.slots.nbytes
        return kept / max(self.count, 1)

    def _make_room(self, states: int) -> None:
        """Make sure that there is room for so many states."""
        if states > len(self.states):
            rows = states * 9 // 8
            self.states.resize((rows, self.words), refcheck=False)
            self.parents.resize(rows, refcheck=False)
