"""States in the order in which they were found, and a hash table to find them again."""

from random import Random

import numpy as np
import numpy.typing as npt
from attrs import define, field

from checks.explore.compiled.jit import compiled, entry
from checks.explore.compiled.model import Words

Indices = npt.NDArray[np.uint32]

_FIRST_SLOTS = 1 << 12
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
def is_same(states: Words, index: int, words: Words) -> bool:
    """True if the state at this index consists of these words."""
    for place in range(len(words)):  # noqa: SIM110
        if states[index, place] != words[place]:
            return False
    return True


@entry
def inserted(
    states: Words,
    parents: Indices,
    slots: Indices,
    count: int,
    found: Words,
    sources: Words,
    edges: int,
    homes: Words,
) -> int:
    """Add the states that are not known yet; returns how many there are then.

    `slots`: a power of two; each holds the index of a state plus 1, or 0. `found`: states at the
    end of so many `edges`, `sources` where they come from. There must be room for all. In `homes`
    the slots where searches begin are noted first, and looked at: the memory is asked for all of
    them at once.
    """
    mask = np.uint64(len(slots) - 1)
    touched = 0
    for edge in range(edges):
        homes[edge] = np.int64(hashed(found[edge]) & mask)
        touched += slots[homes[edge]]
    homes[edges] = touched
    for edge in range(edges):
        slot = homes[edge]
        while slots[slot] != 0 and not is_same(states, slots[slot] - 1, found[edge]):
            slot = (slot + 1) & (len(slots) - 1)
        if slots[slot] == 0:
            for place in range(states.shape[1]):
                states[count, place] = found[edge, place]
            parents[count] = sources[edge]
            count += 1
            slots[slot] = count
    return count


@entry
def looked_up(states: Words, slots: Indices, found: Words, edges: int, indices: Indices) -> None:
    """Write the index of each of so many states, all of which are known."""
    mask = np.uint64(len(slots) - 1)
    for edge in range(edges):
        slot = np.int64(hashed(found[edge]) & mask)
        while not is_same(states, slots[slot] - 1, found[edge]):
            slot = (slot + 1) & (len(slots) - 1)
        indices[edge] = slots[slot] - 1


@entry
def put_in_slots(states: Words, first: int, last: int, slots: Indices) -> None:
    """Put the states from `first` to before `last` into slots; none of them is there yet."""
    mask = np.uint64(len(slots) - 1)
    for index in range(first, last):
        slot = np.int64(hashed(states[index]) & mask)
        while slots[slot] != 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = index + 1


@define
class Table:
    """The states found, their words and the index of the state that each was found from.

    The first is its own parent. Of the slots at most three quarters are taken. `sample`: states
    that are `drawn`, with the seed.
    """

    words: int
    seed: int = 0
    sample: int = 0
    count: int = 0
    states: Words = field(init=False)
    parents: Indices = field(init=False)
    slots: Indices = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.slots = np.zeros(_FIRST_SLOTS, np.uint32)
        self.states = np.zeros((_FIRST_SLOTS, self.words), np.int64)
        self.parents = np.zeros(_FIRST_SLOTS, np.uint32)

    def make_room(self, more: int) -> None:
        """Make sure that so many more states can be added."""
        wanted = self.count + more
        if wanted > len(self.states):
            rows = max(wanted, len(self.states) * 3 // 2)
            self.states.resize((rows, self.words), refcheck=False)
            self.parents.resize(rows, refcheck=False)
        if wanted * 4 > len(self.slots) * 3:
            slots = 1 << (wanted * 4 // 3).bit_length()
            self.slots = np.zeros(slots, np.uint32)
            put_in_slots(self.states, 0, self.count, self.slots)

    def window(self, first: int, last: int) -> tuple[Words, int, int]:
        """Words in which the states from `first` to before `last` stand, and where."""
        return self.states, first, last

    def forget(self, before: int) -> None:
        """States are kept for ever here."""

    def add(self, found: Words, sources: Words, edges: int, homes: Words) -> None:
        """Add what is new of the states at the end of so many edges."""
        self.make_room(edges)
        self.count = inserted(
            *(self.states, self.parents, self.slots, self.count, found, sources, edges, homes)
        )

    def append(self, states: Words, parents: Indices) -> None:
        """Add states that are known to be new, each found from the state with this number."""
        self.make_room(len(states))
        first, self.count = self.count, self.count + len(states)
        self.states[first : self.count], self.parents[first : self.count] = states, parents
        put_in_slots(self.states, first, self.count, self.slots)

    def indices(self, found: Words, edges: int) -> Indices:
        """The indices of so many states, all of which are known."""
        indices = np.zeros(edges, np.uint32)
        looked_up(self.states, self.slots, found, edges, indices)
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
        """What is kept, slots that are free included, for each state."""
        each = self.states[0].nbytes + self.parents.itemsize
        return float(each + self.slots.nbytes / max(self.count, 1))
