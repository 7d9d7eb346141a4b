"""The events of a step, replayed one after the other on the pool from before the step.

Rules ask it which blocks were free, held, or named by the lookup table at the moment of an event;
nothing in it is taken from the state that the step left.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import takewhile
from typing import TypeAlias

from attrs import define, field, frozen

from spec.core.judging import holders_of, ids
from spec.core.records import DECODE, Event
from spec.core.requests import BlockKey
from spec.nano_vllm.block_hashes import content
from spec.nano_vllm.config import Hashing, HitCheck, NanoVllmConfig
from spec.nano_vllm.records import Context, Sequence, State, Step
from spec.nano_vllm.rules.counting import blocks_to_find, first_position, is_decoded_first

_NONE = -1  # no block


@define
class Books:
    """The notes of the block manager at one moment, as far as they differ from a state at rest.

    `free`: how many blocks are free. `hashed_now`: blocks that were hashed in this step, before
    being computed, or are computed in it. `keys`: hash and tokens that blocks have now, None: none.
    `named`: the block that the lookup table names for a hash from now on, -1: none.
    """

    ctx: Context
    state: State
    free: int = field(init=False)
    hashed_now: set[int] = field(factory=set, init=False)
    _tables: dict[str, tuple[int, ...]] = field(factory=dict, init=False)
    _holders: "Counter[int]" = field(init=False)  # how often each block stands in a table
    keys: dict[int, BlockKey | None] = field(factory=dict, init=False)
    named: dict[BlockKey, int] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.free = len(self.state.pool.free)
        self._holders = holders_of(self.state.present)
        for row in self.state.in_progress:
            self.hashed_now.update(row.blocks[row.computed // self.ctx.config.block_size :])

    def is_held(self, block: int) -> bool:
        """True if the block stands in a table."""
        return self._holders[block] > 0

    def block_key(self, block: int) -> BlockKey | None:
        """Hash and tokens that a block has."""
        return self.keys[block] if block in self.keys else self.state.pool.keys.get(block)

    def hits(self, sequence: Sequence) -> list[int]:
        """The blocks of the longest leading run that the table names and that pass the check."""
        count = blocks_to_find(self.ctx.config, sequence.prefill_len)
        found = map(self._hit, self.ctx.keys.of(sequence.id, count))
        return list(takewhile(lambda block: block != _NONE, found))

    def _hit(self, key: BlockKey) -> int:
        """The block that the table names, if it passes the check; else none."""
        (named,) = self.state.pool.cached.get(key, (_NONE,))
        named = self.named.get(key, named)
        held = self.block_key(named) or b""
        match self.ctx.config.hit_check:
            case HitCheck.TOKENS:
                is_hit = content(held) == content(key)
            case HitCheck.HASH:
                is_hit = held == key
            case HitCheck.NOTHING:
                is_hit = True
        return named if is_hit else _NONE

    def give(self, owner: Sequence, blocks: tuple[int, ...], is_hit: bool) -> None:
        """Blocks at the end of a table.

        As released full ones are hashed if the owner is being admitted. Where they are hashed once
        computed, the lookup table forgets the blocks, unless they were hits.
        """
        table = self._tables.get(owner.id, owner.blocks)
        early = self.ctx.config.hashing is Hashing.ALLOCATED
        for block in blocks:
            self.free -= not self.is_held(block)
            self._holders[block] += 1
            if early or not is_hit:
                self._clear(block)
        self._tables[owner.id] = table + blocks
        full = owner.prefill_len // self.ctx.config.block_size if not owner.blocks else 0
        keys = self.ctx.keys.of(owner.id, full if early else 0)[len(table) :]
        for block, key in zip(blocks, keys, strict=False):
            self.hash(block, key)
            self.hashed_now.add(block)

    def _clear(self, block: int) -> None:
        """The block has no hash; where it is hashed once computed, the table forgets it."""
        held = self.block_key(block)
        self.keys[block] = None
        forgets = self.ctx.config.hashing is Hashing.COMPUTED
        if forgets and held is not None and self.named_blocks(held) == (block,):
            self.named[held] = _NONE

    def named_blocks(self, key: BlockKey) -> tuple[int, ...] | None:
        """The block that the lookup table names for a hash; None if it names none."""
        if key in self.named:
            return (self.named[key],) if self.named[key] != _NONE else None
        return self.state.pool.cached.get(key)

    def hash(self, block: int, key: BlockKey) -> None:
        """The block has this hash and these tokens, and is the last that was given them."""
        self.keys[block] = key
        self.named[key] = block

    def take_back(self, owner: Sequence) -> None:
        """Nothing is in a table any more."""
        for block in self._tables.get(owner.id, owner.blocks):
            self._holders[block] -= 1
            self.free += not self.is_held(block)
        self._tables[owner.id] = ()


def replayed(ctx: Context, step: Step) -> Iterator[tuple[Event, Books]]:
    """Each event of the step with the books as it found them; the same books, kept up to date."""
    books = Books(ctx, step.before)
    rows = _involved(step)
    for event in step.events:
        yield event, books
        if event.transition in ("prefix_hit", "allocate"):
            is_hit = event.transition == "prefix_hit"
            books.give(rows[event.id], tuple(event.after), is_hit)
        elif event.transition in ("preempt", "finish"):
            books.take_back(rows[event.id])


def final_books(ctx: Context, step: Step) -> Books:
    """The books at the end of the step, with the blocks that it has filled and hashed.

    As released those of a prefill were hashed when they were handed out.
    """
    size, at_events = ctx.config.block_size, [books for _, books in replayed(ctx, step)]
    books = at_events[-1] if at_events else Books(ctx, step.before)
    hashes = step.kind == DECODE or ctx.config.hashing is Hashing.COMPUTED
    for row in step.batch if hashes else ():
        start, full = first_position(step, row, size), row.computed // size
        keys = ctx.keys.of(row.id, full)
        for place in range(max(start // size, row.hit_blocks), full):  # hits are hashed already
            books.hash(row.blocks[place], keys[place])
    return books


def _involved(step: Step) -> dict[str, Sequence]:
    """The running sequences, one whose prefill is cut, the admitted and the one behind them."""
    before = step.before
    return {row.id: row for row in (*before.running, *before.in_progress, *_front(step))}


def queue_of(step: Step) -> tuple[Sequence, ...]:
    """The running queue behind the admissions of the step, as its rows were before it."""
    admitted = ids(step.happened("admit"))
    return (*step.before.running, *(row for row in _front(step) if row.id in admitted))


def _front(step: Step) -> tuple[Sequence, ...]:
    """The front of waiting: the admitted and one more; all of it if others were admitted.

    One whose prefill is cut was admitted before.
    """
    admitted, waiting = ids(step.happened("admit")), step.before.waiting
    begun = len(step.before.in_progress)
    front = waiting[begun : begun + len(admitted) + 1]
    return tuple(front if admitted <= ids(front) else waiting[begun:])


@frozen
class Candidate:
    """A sequence that stood in front of waiting when the step looked at it.

    `is_admitted`: whether it was let in. `count`, `batched`: sequences and tokens that the step
    was to prefill by then. `running`: length of the running queue. `free`: free blocks. `hits`:
    blocks that the lookup finds, `shared` of them held. `taken`: blocks that it took as hits,
    `held`: hash and tokens that these had, `uncomputed`: those that were hashed in this very step.
    """

    sequence: Sequence
    is_admitted: bool
    count: int
    batched: int
    running: int
    free: int
    hits: tuple[int, ...]
    shared: int
    taken: tuple[int, ...]
    held: tuple[BlockKey | None, ...]
    uncomputed: frozenset[int]

    def is_decoded_first(self, config: NanoVllmConfig) -> bool:
        """True if it is in no prefill, for all its blocks were taken as hits."""
        return is_decoded_first(config, self.sequence.prefill_len, len(self.taken))


Candidates: TypeAlias = list[Candidate]


def candidates(ctx: Context, step: Step) -> Candidates:
    """All that the step looked at for admission: those admitted, and the first refused."""
    return [*_candidates(ctx, step)]


def _candidates(ctx: Context, step: Step) -> Iterator[Candidate]:
    waiting = {row.id: row for row in _front(step)}
    taken = {event.id: tuple(event.after) for event in step.happened("prefix_hit")}
    begun = step.before.in_progress
    count, running = len(begun), len(step.before.running) + len(begun)
    batched = sum(row.prefill_len - row.computed for row in begun)
    books, newest = Books(ctx, step.before), ""
    for event, books in replayed(ctx, step):
        if event.transition == "admit":
            row, blocks = waiting.pop(event.id), taken.get(event.id, ())
            candidate = _candidate(books, row, count, batched, running, blocks)
            yield candidate
            newest, running = row.id, running + 1
            if not candidate.is_decoded_first(ctx.config):
                count, batched = count + 1, batched + row.prefill_len
                batched -= len(blocks) * ctx.config.block_size
        elif event.id != newest or event.transition not in ("prefix_hit", "allocate"):
            break  # the admissions are over
    if waiting:
        refused = next(iter(waiting.values()))
        yield _candidate(books, refused, count, batched, running, None)


def _candidate(
    books: Books,
    sequence: Sequence,
    count: int,
    batched: int,
    running: int,
    taken: tuple[int, ...] | None,
) -> Candidate:
    hits, blocks = books.hits(sequence), taken or ()
    return Candidate(
        sequence=sequence,
        is_admitted=taken is not None,
        count=count,
        batched=batched,
        running=running,
        free=books.free,
        hits=tuple(hits),
        shared=sum(map(books.is_held, hits)),
        taken=blocks,
        held=tuple(books.block_key(block) for block in blocks),
        uncomputed=frozenset(blocks) & books.hashed_now,
    )
