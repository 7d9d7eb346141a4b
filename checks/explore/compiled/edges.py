"""Edges that leave some batches of states, arranged by the partition of their ends."""

import numpy as np
import numpy.typing as npt
from attrs import define, field

from checks.explore.compiled.jit import compiled, entry
from checks.explore.compiled.model import Words

PARTITIONS = 16  # a power of two, and as many as cores can share evenly

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]

_IN_PARTITION = np.uint64(PARTITIONS - 1)
# Constants of the finalizer of MurmurHash3 (Austin Appleby, public domain).
_FACTORS = (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53))
_FACTOR, _OTHER_FACTOR = _FACTORS
_SHIFT = np.uint64(33)


@compiled
def hashed(words: Words) -> np.uint64:
    """A number of 64 bits that is as good as random."""
    value = np.uint64(0)
    for word in words:
        value = (value ^ np.uint64(word)) * _FACTOR
        value = (value ^ (value >> _SHIFT)) * _OTHER_FACTOR
        value ^= value >> _SHIFT
    return value


@compiled
def partition_of(hash_of_state: np.uint64) -> np.int64:
    """The partition in which states with this hash are."""
    return np.int64(hash_of_state & _IN_PARTITION)


@entry
def arranged(
    edges: tuple[Words, Numbers, Numbers, Hashes],
    count: int,
    to: tuple[Words, Numbers, Numbers, Hashes, Numbers],
    first: int,
    starts: Numbers,
) -> None:
    """Put so many edges from `first` on by the partition of their ends, else in their order.

    Edges have an end, a source, what they break, and the hash of their end, which is made here;
    where each one is put is noted in the order of edges. Those to partition p stand from
    `starts[p]` to before `starts[p + 1]` then.
    """
    found, sources, broken, hashes = edges
    to_found, to_sources, to_broken, to_hashes, order = to
    starts[:] = 0
    for edge in range(count):
        hashes[edge] = hashed(found[edge])
        starts[partition_of(hashes[edge]) + 2] += 1
    starts[1] = first
    for partition in range(PARTITIONS):
        starts[partition + 2] += starts[partition + 1]
    for edge in range(count):
        behind = partition_of(hashes[edge]) + 1  # in the end this is where the next one begins
        place = starts[behind]
        starts[behind] += 1
        for word in range(found.shape[1]):
            to_found[place, word] = found[edge, word]
        to_sources[place], to_broken[place] = sources[edge], broken[edge]
        to_hashes[place], order[first + edge] = hashes[edge], place
    starts[0] = first


@define
class Room:
    """A core's own room for the edges of a batch, as the machine writes them."""

    words: int
    size: int
    found: Words = field(init=False)
    sources: Numbers = field(init=False)
    actions: Numbers = field(init=False)
    broken: Numbers = field(init=False)
    hashes: Hashes = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.found = np.zeros((self.size, self.words), np.int64)
        self.sources, self.actions, self.broken = np.zeros((3, self.size), np.int64)
        self.hashes = np.zeros(self.size, np.uint64)


@define
class Edges:
    """Edges by number: those of batch b have the numbers from `size` x b on.

    Of each: the state `found` at its end with its hash, the number of its source, what it breaks,
    as bits, and `homes`: the slot of a state that is new, else -1. `starts`: of each batch, where
    partitions begin, and at last where the edges end; `order`: the edges as they were taken.
    `new`: states, by batch and partition, and `firsts`: the number that the first of each batch
    gets. `counts`: of each batch its edges, or why it has none. `used`: batches that there are.
    """

    size: int
    found: Words
    sources: Numbers
    broken: Numbers
    homes: Numbers
    order: Numbers
    hashes: Hashes
    starts: Numbers
    new: Numbers
    firsts: Numbers
    counts: Numbers
    used: int = 0

    @staticmethod
    def empty(words: int, size: int, batches: int) -> "Edges":
        """Room for so many batches of so many edges, between states of so many words."""
        most = batches * size
        sources, broken, homes, order = np.zeros((4, most), np.int64)
        return Edges(
            size=size,
            found=np.zeros((most, words), np.int64),
            sources=sources,
            broken=broken,
            homes=homes,
            order=order,
            hashes=np.zeros(most, np.uint64),
            starts=np.zeros((batches, PARTITIONS + 2), np.int64),
            new=np.zeros((batches, PARTITIONS), np.int64),
            firsts=np.zeros(batches, np.int64),
            counts=np.zeros(batches, np.int64),
        )

    @staticmethod
    def to(states: Words, sources: Numbers) -> "Edges":
        """One batch of edges that lead from sources to these states."""
        count = len(states)
        edges, room = Edges.empty(states.shape[1], count, 1), Room(states.shape[1], count)
        edges.used, room.found, room.sources = 1, states, sources
        edges.arrange(room, count, 0)
        return edges

    def arrange(self, room: Room, count: int, batch: int) -> None:
        """Put the edges in a core's room where those of the batch belong."""
        edges = room.found, room.sources, room.broken, room.hashes
        to = self.found, self.sources, self.broken, self.hashes, self.order
        arranged(edges, count, to, batch * self.size, self.starts[batch])

    def of_batch(self, batch: int) -> slice:
        """The numbers of the edges of a batch."""
        return slice(batch * self.size, int(self.starts[batch, PARTITIONS]))

    def most_to_a_partition(self) -> int:
        """How many edges there are to states of the partition that has most."""
        starts = self.starts[: self.used, : PARTITIONS + 1]
        return int(np.diff(starts).sum(axis=0).max())

    def number_new(self, count: int) -> int:
        """Number what is new from `count` on, in the order of edges; returns the last count."""
        ends = count + self.new[: self.used].sum(axis=1).cumsum()
        self.firsts[0], self.firsts[1 : self.used] = count, ends[:-1]
        return int(ends[-1])
