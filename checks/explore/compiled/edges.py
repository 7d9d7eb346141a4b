"""The outgoing edges of batches of states, sorted by the partition of their target states."""

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
    """A 64-bit hash of a state's words."""
    value = np.uint64(0)
    for word in words:
        value = (value ^ np.uint64(word)) * _FACTOR
        value = (value ^ (value >> _SHIFT)) * _OTHER_FACTOR
        value ^= value >> _SHIFT
    return value


@compiled
def partition_index(hash_of_state: np.uint64) -> np.int64:
    """The partition of the states with this hash."""
    return np.int64(hash_of_state & _IN_PARTITION)


@entry
def arranged(
    edges: tuple[Words, Numbers, Numbers, Hashes],
    count: int,
    to: tuple[Words, Numbers, Numbers, Hashes, Numbers],
    first: int,
    starts: Numbers,
) -> None:
    """Copy `count` edges into `to` from index `first` on, sorted stably by target partition.

    An edge has a target state, a source, the rules it breaks, and the hash of its target, which is
    computed here. `order` receives the new index of each edge. Edges to partition p then have the
    indices from `starts[p]` to before `starts[p + 1]`.
    """
    targets, sources, broken, hashes = edges
    to_targets, to_sources, to_broken, to_hashes, order = to
    starts[:] = 0
    for edge in range(count):
        hashes[edge] = hashed(targets[edge])
        starts[partition_index(hashes[edge]) + 2] += 1
    starts[1] = first
    for partition in range(PARTITIONS):
        starts[partition + 2] += starts[partition + 1]
    for edge in range(count):
        behind = partition_index(hashes[edge]) + 1  # in the end this is where the next one begins
        place = starts[behind]
        starts[behind] += 1
        for word in range(targets.shape[1]):
            to_targets[place, word] = targets[edge, word]
        to_sources[place], to_broken[place] = sources[edge], broken[edge]
        to_hashes[place], order[first + edge] = hashes[edge], place
    starts[0] = first


@define
class Room:
    """A core's own buffers for the edges of a batch, as the machine writes them."""

    words: int
    size: int
    targets: Words = field(init=False)
    sources: Numbers = field(init=False)
    actions: Numbers = field(init=False)
    broken: Numbers = field(init=False)
    hashes: Hashes = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.targets = np.zeros((self.size, self.words), np.int64)
        self.sources, self.actions, self.broken = np.zeros((3, self.size), np.int64)
        self.hashes = np.zeros(self.size, np.uint64)


@define
class Edges:
    """Edges of a round by index: those of batch b have the indices from `size` x b on.

    For each edge: `targets`, the words of its target state, and `hashes`, their hash; `sources`,
    the index of its source state; `broken`, the rules it breaks, as bits; `homes`, the slot of its
    target if that is a new state, else -1. `order`: the edges in the order of the machine.
    For each batch: `starts`, where each partition begins, and last where the edges end; `new`, the
    number of new states by partition; `firsts`, the index of its first new state; `counts`, its
    number of edges, or a negative error code. `used`: the number of batches in use.
    """

    size: int
    targets: Words
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
        """Buffers for `batches` batches of `size` edges between states of `words` words."""
        most = batches * size
        sources, broken, homes, order = np.zeros((4, most), np.int64)
        return Edges(
            size=size,
            targets=np.zeros((most, words), np.int64),
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
        """One batch of edges that lead from the sources to these states."""
        count = len(states)
        edges, room = Edges.empty(states.shape[1], count, 1), Room(states.shape[1], count)
        edges.used, room.targets, room.sources = 1, states, sources
        edges.arrange(room, count, 0)
        return edges

    def arrange(self, room: Room, count: int, batch: int) -> None:
        """Copy the edges of a batch from `room`, the buffers in which a core wrote them."""
        edges = room.targets, room.sources, room.broken, room.hashes
        to = self.targets, self.sources, self.broken, self.hashes, self.order
        arranged(edges, count, to, batch * self.size, self.starts[batch])

    def of_batch(self, batch: int) -> slice:
        """The indices of the edges of a batch."""
        return slice(batch * self.size, int(self.starts[batch, PARTITIONS]))

    def most_to_a_partition(self) -> int:
        """The largest number of edges into one partition."""
        starts = self.starts[: self.used, : PARTITIONS + 1]
        return int(np.diff(starts).sum(axis=0).max())

    def number_new(self, count: int) -> int:
        """Number the new states from `count` on, in the order of edges; returns the new count."""
        ends = count + self.new[: self.used].sum(axis=1).cumsum()
        self.firsts[0], self.firsts[1 : self.used] = count, ends[:-1]
        return int(ends[-1])
