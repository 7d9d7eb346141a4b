"""States by fingerprints of 64 bits: a set of numbers, and the words of what is not expanded yet.

A state whose fingerprint another one has is taken for that one and never expanded: it is missed,
and what only it leads to. How probable that is, is in the answer (`chances_of_a_miss`).
"""

import numpy as np
import numpy.typing as npt
from attrs import define, field

from checks.explore.compiled.jit import compiled, entry
from checks.explore.compiled.model import Words
from checks.explore.compiled.table import hashed

Fingerprints = npt.NDArray[np.uint64]

_FIRST_SLOTS = 1 << 12
_MOST_TAKEN, _GROWTH = 0.88, 1.3  # of the slots; after growing two thirds are taken
_FREE = np.uint64(0)
_INSTEAD_OF_FREE = np.uint64(1)


@compiled
def put_fingerprint(slots: Fingerprints, fingerprint: np.uint64) -> bool:
    """Add a fingerprint; False if it is there."""
    slot = np.int64(fingerprint % np.uint64(len(slots)))
    while slots[slot] != _FREE and slots[slot] != fingerprint:
        slot += 1
        if slot == len(slots):
            slot = np.int64(0)
    is_new = slots[slot] == _FREE
    slots[slot] = fingerprint
    return bool(is_new)


@entry
def put_all(slots: Fingerprints, fingerprints: Fingerprints) -> None:
    """Add all of them but those that stand for a free slot."""
    for one in fingerprints:
        if one != _FREE:
            put_fingerprint(slots, one)


@entry
def sketched(slots: Fingerprints, states: Words, rows: int, found: Words, edges: int) -> int:
    """Write behind so many rows what is new of the states found; returns how many there are."""
    for edge in range(edges):
        fingerprint = hashed(found[edge])
        if fingerprint == _FREE:
            fingerprint = _INSTEAD_OF_FREE
        if put_fingerprint(slots, fingerprint):
            for place in range(states.shape[1]):
                states[rows, place] = found[edge, place]
            rows += 1
    return rows


@define
class Sketch:
    """Stands for `Table` where exact states do not fit into memory; states are numbered as there.

    `count`: states found. `forgotten`: how many of them, the first, have no words any more.
    `sample`: states that are `drawn`, with the seed.
    """

    words: int
    seed: int = 0
    sample: int = 0
    count: int = 0
    forgotten: int = 0
    peak_rows: int = 0
    states: Words = field(init=False)
    slots: Fingerprints = field(init=False)
    _random: np.random.Generator = field(init=False)
    _places: dict[int, tuple[int, Words]] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)
        self.slots = np.zeros(_FIRST_SLOTS, np.uint64)
        self.states = np.zeros((_FIRST_SLOTS, self.words), np.int64)

    def window(self, first: int, last: int) -> tuple[Words, int, int]:
        """Words in which the states from `first` to before `last` stand, and where."""
        return self.states, first - self.forgotten, last - self.forgotten

    def forget(self, before: int) -> None:
        """Forget the words of all states before this one."""
        self._draw(before)
        kept = self.states[before - self.forgotten : self.count - self.forgotten].copy()
        self.states = np.concatenate([kept, np.zeros((_FIRST_SLOTS, self.words), np.int64)])
        self.forgotten = before

    def add(self, found: Words, _sources: Words, edges: int, _homes: Words) -> None:
        """Add what is new of the states at the end of so many edges."""
        if (self.count + edges) > _MOST_TAKEN * len(self.slots):
            wider = int(max(len(self.slots) * _GROWTH, (self.count + edges) / _MOST_TAKEN + 1))
            slots = np.zeros(wider, np.uint64)
            put_all(slots, self.slots)
            self.slots = slots
        rows = self.count - self.forgotten
        if rows + edges > len(self.states):
            more = max(rows + edges, len(self.states) * 3 // 2)
            self.states.resize((more, self.words), refcheck=False)
        self.count = self.forgotten + sketched(self.slots, self.states, rows, found, edges)
        self.peak_rows = max(self.peak_rows, self.count - self.forgotten)

    def _draw(self, before: int) -> None:
        """Draw among the states before this one, so that each seen so far is as likely."""
        new = np.arange(self.forgotten, before)
        places = np.where(new < self.sample, new, self._random.integers(0, new + 1))
        for row in np.flatnonzero(places < self.sample):
            self._places[int(places[row])] = int(new[row]), self.states[row].copy()

    def drawn(self) -> dict[int, Words]:
        """Some of all states, by number, each as likely as any other; asked for at the end."""
        self._draw(self.count)
        return dict(self._places.values())

    @property
    def bytes_per_state(self) -> float:
        """The slots, free ones included, and the most words that were kept, for each state."""
        words = self.peak_rows * self.states[0].nbytes
        return float((self.slots.nbytes + words) / max(self.count, 1))


def chances_of_a_miss(states: int, edges: int) -> tuple[float, float]:
    """How probable it is that a state was missed, two estimates for fingerprints of 64 bits.

    That any two of so many states have the same one, at most; and that a state which was found
    again was in truth another one, as TLC has it: states times edges that led to no new state. To
    the first state none leads.
    """
    return states**2 / 2**64, states * max(edges + 1 - states, 0) / 2**64
