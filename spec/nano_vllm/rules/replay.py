"""A step's events, applied one after the other to the pool that the step found.

Rules ask it what was free, held, or named by the lookup table at the moment of an event; nothing
in it is taken from the state that the step left.
"""

from collections.abc import Iterator
from itertools import takewhile

from attrs import define, frozen

from spec.core.judging import FreeList, once
from spec.core.records import Event
from spec.core.requests import BlockKey
from spec.nano_vllm.block_hashes import content
from spec.nano_vllm.config import HitCheck
from spec.nano_vllm.records import Context, Sequence, State, Step
from spec.nano_vllm.rules.counting import blocks_to_find


@define
class Books(FreeList):
    """What the block manager has noted at one moment.

    `keys`: hash and tokens of each block that has them. `named`: the block that the lookup table
    names. `hashed_now`: blocks that were hashed in this step, before being computed.
    """

    ctx: Context
    keys: dict[int, BlockKey]
    named: dict[BlockKey, int]
    hashed_now: set[int]

    @staticmethod
    def at(ctx: Context, state: State) -> "Books":
        """The books of a state at rest."""
        return Books.of(
            state.pool.free,
            state.present,
            ctx=ctx,
            keys=dict(state.pool.keys),
            named={key: blocks[0] for key, blocks in state.pool.cached.items()},
            hashed_now=set(),
        )

    def hits(self, sequence: Sequence) -> list[int]:
        """The blocks of the longest leading run that the table names and that pass the check."""
        count = blocks_to_find(self.ctx.config, sequence.prefill_len)
        run = takewhile(self._is_hit, self.ctx.keys.of(sequence.id, count))
        return [self.named[key] for key in run]

    def _is_hit(self, key: BlockKey) -> bool:
        if key not in self.named:
            return False
        held = self.keys.get(self.named[key], b"")
        match self.ctx.config.hit_check:
            case HitCheck.TOKENS:
                return content(held) == content(key)
            case HitCheck.HASH:
                return held == key
        return True

    def give(self, owner: Sequence, blocks: tuple[int, ...]) -> None:
        """Blocks at the end of a table; full ones are hashed if the owner is being admitted."""
        place = len(self.tables[owner.id])
        self.take(owner.id, blocks)
        full = owner.prefill_len // self.ctx.config.block_size if not owner.blocks else 0
        keys = self.ctx.keys.of(owner.id, full)[place:]
        for block in blocks:
            self.keys.pop(block, None)
        for block, key in zip(blocks, keys, strict=False):
            self.keys[block] = key
            self.named[key] = block
            self.hashed_now.add(block)


def replayed(ctx: Context, step: Step) -> Iterator[tuple[Event, Books]]:
    """Each event of the step with the books as it found them; the same books, kept up to date."""
    books = Books.at(ctx, step.before)
    rows = {one.id: one for one in step.before.present}
    for event in step.events:
        yield event, books
        if event.transition in ("prefix_hit", "allocate"):
            books.give(rows[event.id], tuple(event.after))
        elif event.transition in ("preempt", "finish"):
            books.put((), books.give_back(event.id))


@frozen
class Candidate:
    """A sequence that stood in front of waiting when the step looked at it.

    `is_admitted`: whether it was let in. `count`, `batched`: sequences and tokens that the step
    had by then. `running`: length of the running queue. `free`: free blocks. `hits`: blocks that
    the lookup finds, `shared` of them held. `taken`: blocks that it took as hits, `held`: hash and
    tokens that these had, `uncomputed`: those that were hashed in this very step.
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


@once
def candidates(ctx: Context, step: Step) -> tuple[Candidate, ...]:
    """All that the step looked at for admission: those admitted, and the first refused."""
    return tuple(_candidates(ctx, step))


def _candidates(ctx: Context, step: Step) -> Iterator[Candidate]:
    waiting = {one.id: one for one in step.before.waiting}
    taken = {event.id: tuple(event.after) for event in step.happened("prefix_hit")}
    count = batched = 0
    books = Books.at(ctx, step.before)
    for event, books in replayed(ctx, step):
        if event.transition == "admit":
            one, blocks = waiting.pop(event.id), taken.get(event.id, ())
            yield _candidate(books, one, count, batched, blocks)
            count, batched = count + 1, batched + one.prefill_len
            batched -= len(blocks) * ctx.config.block_size
        elif count == 0 or event.transition == "prefill":
            break  # the admissions are over
    if waiting:
        refused = next(iter(waiting.values()))
        yield _candidate(books, refused, count, batched, None)


def _candidate(
    books: Books, sequence: Sequence, count: int, batched: int, taken: tuple[int, ...] | None
) -> Candidate:
    hits, blocks = books.hits(sequence), taken or ()
    return Candidate(
        sequence=sequence,
        is_admitted=taken is not None,
        count=count,
        batched=batched,
        running=sum(map(bool, books.tables.values())),
        free=len(books.free),
        hits=tuple(hits),
        shared=sum(block in books.holders for block in hits),
        taken=blocks,
        held=tuple(books.keys.get(block) for block in blocks),
        uncomputed=frozenset(blocks) & books.hashed_now,
    )
