"""The moves of nano-vLLM's reference that its proofs speak of, compared with its edges.

A step is played on plain lists: by definition, from the state before it, and from nothing that the
reference computes but which requests end. Its events and the state that it leaves must be those of
the play. Hashes of blocks are those of the specification, which NANO-PFX-10 judges.
"""

from collections import Counter, deque
from collections.abc import Iterator
from random import Random

from attrs import define, evolve, field

from checks.harness.case import Case
from checks.proofs.links import MOST_ROWS, Edge, Link
from checks.proofs.nano_vllm.scope import SCOPE
from spec.core.judging import once
from spec.core.records import DECODE, IDLE, PREFILL, Event
from spec.core.requests import BlockKey, Prompt, Request
from spec.nano_vllm.block_hashes import content
from spec.nano_vllm.config import (
    FullHit,
    GraphSizes,
    HitCheck,
    MemoryGate,
    NanoVllmConfig,
    NewBlock,
    Oversized,
    SequenceLimit,
    TokenGate,
)
from spec.nano_vllm.records import Context, Sequence, State, Step

# --- random large runs ----------------------------------------------------------------------------


def large_case(random: Random) -> Case:
    """A case with many rows, real blocks and real lengths, whose budget and pool bind.

    Every reading is drawn but new blocks at a boundary, with which most runs stop at a guard and
    break rules: the default instances have that reading.
    """
    block = random.choice((16, 64, 256))
    rows = random.choice((8, 24, 32, MOST_ROWS))
    model_len = block * random.choice((8, 12)) + random.choice((0, 1))
    all_captured = rows <= 8 or rows % 16 == 0
    config = NanoVllmConfig(
        block_size=block,
        max_num_seqs=rows,
        max_model_len=model_len,
        max_num_batched_tokens=model_len + random.choice((0, 1, block, 2 * model_len)),
        token_gate=random.choice([*TokenGate]),
        memory_gate=random.choice([*MemoryGate]),
        sequence_limit=random.choice([*SequenceLimit]),
        hit_check=random.choice([*HitCheck]),
        full_hit=random.choice([*FullHit]),
        graph_sizes=random.choice([*GraphSizes]) if all_captured else GraphSizes.POWERS_OF_TWO,
        oversized=random.choice([*Oversized]),
    )
    count = MOST_ROWS + 6
    requests = tuple(_large_request(random, str(index), config) for index in range(count))
    needed = [_ceil_div(one.most_tokens - 1, block) for one in requests]
    share = random.choice((0.15, 0.25, 0.35, 0.5))  # of the blocks that all need at once
    return Case(evolve(config, num_blocks=max(*needed, int(sum(needed) * share))), requests)


def _large_request(random: Random, name: str, config: NanoVllmConfig) -> Request:
    """A prompt of a few blocks, often with a common beginning or the same as others'."""
    size = config.block_size
    common = size * random.choice((0, 0, 1, 2))
    own = random.choice((0, 1, random.randint(1, 2 * size), size - 3, size - 30 % size, size))
    parts = [("common", common), (f"own {name}", own)] if common + own else [(name, size)]
    most = random.choice((1, 20, 40, 80, min(size + 2, 140)))
    arrival = random.choice((0, 0, 0, random.randint(0, 30)))
    return Request(
        id=name,
        prompt=Prompt.of_parts([part for part in parts if part[1]]),
        max_tokens=most,
        arrival=arrival,
        output_len=random.choice((None, None, random.randint(1, most))),
        abort_at=random.choice((None, None, None, None, arrival + random.randint(1, 40))),
    )


# In "documented" a prompt of whole blocks finds no slot for its first answer.
LINK = Link("nano-vllm", SCOPE, large_case, stops=frozenset({"documented"}))


# --- a step by definition -------------------------------------------------------------------------


class OtherMoveError(Exception):
    """The reference does something else than the moves of a step; says what."""


def _ceil_div(tokens: int, size: int) -> int:
    return -(-tokens // size)


@define
class Play:
    """A step played by definition, up to where the reference does something else.

    `running` and `waiting`: the queues, front first. `free`: the free list. `tables`: how often
    each block stands in tables. `hashed` and `named`: what changed of the hashes of blocks, and of
    the blocks that the lookup table names. `admitted`: of this step. `batch`: of this step, as
    computed. `coming`: the events that are not compared yet. `stopped`: the part of the step in
    which the reference does something else, and what.
    """

    ctx: Context
    step: Step
    waiting: list[Sequence]
    running: list[Sequence]
    free: list[int]
    tables: Counter[int]
    coming: deque[Event]
    hashed: dict[int, BlockKey | None] = field(factory=dict)
    named: dict[BlockKey, int] = field(factory=dict)
    admitted: list[Sequence] = field(factory=list)
    batch: list[Sequence] = field(factory=list)
    stopped: tuple[str, str] | None = None

    def expect(self, *events: tuple[str, str, object]) -> None:
        """The next events: transition, request, and the value after it.

        Raises:
            OtherMoveError: something else happens.
        """
        for expected in events:
            event = self.coming.popleft() if self.coming else None
            found = None if event is None else (event.transition, event.id, event.after)
            if found != expected:
                raise OtherMoveError(f"{found} happens, by the moves {expected}")

    # --- the lookup table -------------------------------------------------------------------------

    def hits(self, row: Sequence) -> list[int]:
        """The blocks of the leading full blocks that are found and hold what the check asks for."""
        config, found = self.ctx.config, list[int]()
        # All but the last token, or all, may be found.
        tokens = row.prefill_len - (config.full_hit is FullHit.LAST_COMPUTED)
        for key in self.ctx.keys.of(row.id, tokens // config.block_size):
            block = self._named(key)
            if block is None or not self._holds(block, key):
                break
            found.append(block)
        return found

    def _named(self, key: BlockKey) -> int | None:
        if key in self.named:
            return self.named[key]
        return next(iter(self.step.before.pool.cached.get(key, ())), None)

    def _holds(self, block: int, key: BlockKey) -> bool:
        known = self.step.before.pool.keys.get(block)
        held = self.hashed.get(block) if block in self.hashed else known
        match self.ctx.config.hit_check:
            case HitCheck.TOKENS:
                return held is not None and content(held) == content(key)
            case HitCheck.HASH:
                return held == key
        return True

    def hash(self, block: int, key: BlockKey) -> None:
        """The block has this hash, and the lookup table names it."""
        self.hashed[block] = key
        self.named[key] = block

    # --- blocks -----------------------------------------------------------------------------------

    def take(self, count: int) -> tuple[int, ...]:
        """The first of the free list, without what they held."""
        blocks = tuple(self.free[:count])
        if len(blocks) < count:
            raise OtherMoveError(f"{count} blocks are taken, {len(blocks)} are free")
        del self.free[:count]
        self.tables.update(blocks)
        self.hashed.update(dict.fromkeys(blocks))
        return blocks

    def give_back(self, row: Sequence) -> None:
        """Its table, the last block first; what no other table has goes to the end of free."""
        for block in reversed(row.blocks):
            self.tables[block] -= 1
            if not self.tables[block]:
                self.free.append(block)

    # --- admissions -------------------------------------------------------------------------------

    def admissions(self) -> None:
        """Admit from the front of waiting until a gate refuses.

        Raises:
            OtherMoveError: the reference admits another one, or refuses for another reason.
        """
        refusal = None
        while self.waiting:
            row = self.waiting[0]
            hits = self.hits(row)
            refusal = self.refusing_gate(row, hits)
            goes_on = bool(self.coming) and self.coming[0].transition == "admit"
            if goes_on and refusal:
                raise OtherMoveError(f"{self.coming[0].id} is admitted, {refusal} refuses {row.id}")
            if refusal is not None:
                break
            if not goes_on:
                raise OtherMoveError(f"{row.id} is not admitted, and no gate refuses it")
            self.admit(row, hits)
        if self.step.refusal != refusal:
            raise OtherMoveError(f"refused by {self.step.refusal}, by the gates {refusal}")

    def refusing_gate(self, row: Sequence, hits: list[int]) -> str | None:
        """The first gate that the sequence does not pass: sequences, tokens, memory."""
        config, size = self.ctx.config, self.ctx.config.block_size
        due = self.due
        by_batch = config.sequence_limit is SequenceLimit.BATCH
        if len(due if by_batch else self.running) + 1 > config.max_num_seqs:
            return "NANO-ADM-3"
        computed = sum(one.prefill_len - one.hit_blocks * size for one in due)
        counted = row.prefill_len
        if config.token_gate is TokenGate.NEW_TOKENS:
            counted -= len(hits) * size
        if computed + counted > config.max_num_batched_tokens:
            return "NANO-ADM-1"
        needed = _ceil_div(row.prefill_len, size)
        if config.memory_gate is MemoryGate.NEW_BLOCKS:
            needed -= sum(self.tables[block] > 0 for block in hits)
        return "NANO-ADM-2" if needed > len(self.free) else None

    @property
    def due(self) -> list[Sequence]:
        """The admitted whose tokens the step computes as a prefill."""
        return [row for row in self.admitted if not self._is_decoded_first(row)]

    def _is_decoded_first(self, row: Sequence) -> bool:
        cached = row.hit_blocks * self.ctx.config.block_size
        return self.ctx.config.full_hit is FullHit.LAST_DECODED and cached == row.prefill_len

    def admit(self, row: Sequence, hits: list[int]) -> None:
        """From the front of waiting to the back of running: hits, then blocks of the free list."""
        size = self.ctx.config.block_size
        keys = self.ctx.keys.of(row.id, row.prefill_len // size)
        for block in hits:
            self.tables[block] += 1
            if block in self.free:
                self.free.remove(block)
        for block, key in zip(hits, keys, strict=False):
            self.hash(block, key)
        fresh = self.take(_ceil_div(row.prefill_len, size) - len(hits))
        for block, key in zip(fresh, keys[len(hits) :], strict=False):
            self.hash(block, key)
        self.expect(("admit", row.id, None))
        if hits:
            self.expect(("prefix_hit", row.id, tuple(hits)))
        if fresh:
            self.expect(("allocate", row.id, fresh))
        admitted = evolve(row, blocks=(*hits, *fresh), hit_blocks=len(hits))
        cached = len(hits) * size - self._is_decoded_first(admitted)
        admitted = evolve(admitted, computed=cached)
        self.waiting.pop(0)
        self.running.append(admitted)
        self.admitted.append(admitted)

    # --- a decode batch ---------------------------------------------------------------------------

    def turns(self) -> None:
        """From the front of running each row gets what its newest token needs, or goes itself.

        Raises:
            OtherMoveError: the reference does not hand out, or preempts, what is due.
        """
        if self.due:
            return
        place = 0
        while place < min(len(self.running), self.ctx.config.max_num_seqs):
            row = self.running[place]
            while self.needs_block(row) and not self.free and place < len(self.running):
                self.preempt()
            if place < len(self.running):
                self.running[place] = self.grown(row)
                place += 1
        self.batch = self.running[:place]

    def needs_block(self, row: Sequence) -> bool:
        """True if by the reading a block is due for the newest token, behind those computed."""
        begins = row.computed % self.ctx.config.block_size == 0
        fills = (row.computed + 1) % self.ctx.config.block_size == 0
        return begins if self.ctx.config.new_block is NewBlock.AFTER_BOUNDARY else fills

    def preempt(self) -> None:
        """The back of running goes to the front of waiting, and keeps its tokens alone."""
        victim = self.running.pop()
        self.give_back(victim)
        length = self.ctx.requests[victim.id].prompt_len + victim.generated
        self.waiting.insert(0, Sequence(victim.id, length, generated=victim.generated))
        self.expect(("preempt", victim.id, None))

    def grown(self, row: Sequence) -> Sequence:
        """The row with its slot; the block that its newest token fills is hashed."""
        full, rest = divmod(row.computed + 1, self.ctx.config.block_size)
        if rest == 0 and row.hit_blocks < full:  # a hit is hashed already
            for block in row.blocks[full - 1 : full]:
                self.hash(block, self.ctx.keys.of(row.id, full)[-1])
        if not self.needs_block(row):
            return row
        fresh = self.take(1)
        self.expect(("allocate", row.id, fresh))
        return evolve(row, blocks=(*row.blocks, *fresh))

    # --- the computation, and who leaves ----------------------------------------------------------

    def computation(self) -> None:
        """Each row of the batch computes its tokens and gets one.

        Raises:
            OtherMoveError: the reference computes something else.
        """
        due, step = self.due, self.step
        rows = due or self.batch
        kind = PREFILL if due else DECODE if rows else IDLE
        if step.kind != kind:
            raise OtherMoveError(f"a {step.kind} step, by the moves one of {kind}")
        for row in due:
            self.expect(("prefill", row.id, row.prefill_len))
        if kind == DECODE:
            self.expect(("decode", "", None))
        if len(rows) > self.ctx.config.max_num_seqs:
            raise OtherMoveError(f"{len(rows)} rows, at most {self.ctx.config.max_num_seqs}")
        done = {row.id: self._computed(row, row.prefill_len if due else None) for row in rows}
        computed = {row.id: done[row.id].computed - row.computed for row in rows}
        if due and sum(computed.values()) > self.ctx.config.max_num_batched_tokens:
            raise OtherMoveError(f"{computed} tokens are computed, more than the budget")
        if {**step.scheduled} != computed:
            raise OtherMoveError(f"computed {step.scheduled}, by the moves {computed}")
        self.batch = [*done.values()]
        if [*step.batch] != self.batch:
            raise OtherMoveError(f"the batch is {step.batch}, by the moves {self.batch}")
        self.running = [done.get(row.id, row) for row in self.running]

    @staticmethod
    def _computed(row: Sequence, end: int | None) -> Sequence:
        """With all tokens up to an end in the cache, or one more, and one more token sampled."""
        end = row.computed + 1 if end is None else end
        generated = row.generated + 1
        return Sequence(row.id, row.prefill_len, end, generated, row.blocks, row.hit_blocks)

    def departures(self) -> None:
        """The rows that have all their tokens or ended leave, in the order of the batch.

        Raises:
            OtherMoveError: others leave, or something else happens in the step.
        """
        leaving = [row for row in self.batch if self._is_over(row)]
        for row in leaving:
            self.give_back(row)
            self.expect(("finish", row.id, None))
        if self.coming:
            raise OtherMoveError(f"{self.coming[0].transition} of {self.coming[0].id} on top")
        ids = tuple(row.id for row in leaving)
        if self.step.finished != ids:
            raise OtherMoveError(f"finished {self.step.finished}, by the moves {ids}")
        self.running = [row for row in self.running if row.id not in ids]

    def _is_over(self, row: Sequence) -> bool:
        request = self.ctx.requests[row.id]
        most = min(request.max_tokens, request.end)
        return row.generated >= most or row.id in self.step.ended


ADMISSIONS, DECODE_BATCH = "admissions", "the decode batch"
COMPUTATION, DEPARTURES = "the computation", "departures"


@once
def played(ctx: Context, step: Step) -> Play:
    """The whole step, or its parts up to where the reference does something else."""
    state = step.before
    play = Play(
        ctx=ctx,
        step=step,
        waiting=[*state.waiting],
        running=[*state.running],
        free=[*state.pool.free],
        tables=_tables_of(state),
        coming=deque(step.events),
    )
    parts = {
        ADMISSIONS: play.admissions,
        DECODE_BATCH: play.turns,
        COMPUTATION: play.computation,
        DEPARTURES: play.departures,
    }
    for name, part in parts.items():
        try:
            part()
        except OtherMoveError as error:
            play.stopped = (name, str(error))
            break
    return play


def _tables_of(state: State) -> Counter[int]:
    """How often each block stands in a table."""
    return Counter(block for row in state.running for block in row.blocks)


# --- the parts of a step --------------------------------------------------------------------------


def _other(edge: Edge, part: str) -> Iterator[str]:
    """What the reference does otherwise in a part of its step."""
    stopped = None if edge.step is None else played(edge.ctx, edge.step).stopped
    if stopped is not None and stopped[0] == part:
        yield stopped[1]


@LINK.move(ADMISSIONS)
def admissions(edge: Edge) -> Iterator[str]:
    """Requests are admitted from the front of waiting while the sequence limit, the budget and the
    free blocks allow; the first that is refused ends it, by the first gate that refuses it. It
    takes the leading full blocks that are found, and the rest of the free list, first in first out.
    """
    yield from _other(edge, ADMISSIONS)


@LINK.move(DECODE_BATCH)
def decode_batch(edge: Edge) -> Iterator[str]:
    """If nothing is to be prefilled, the front of running decodes, up to the limit. A row is handed
    a block exactly where the reading says; where none is free the back of running is preempted.
    """
    yield from _other(edge, DECODE_BATCH)


@LINK.move(COMPUTATION)
def computation(edge: Edge) -> Iterator[str]:
    """A prefill computes of each admitted request its length without the cached tokens, in all no
    more than the budget; a decode step a token of each row. Each row gets one token.
    """
    yield from _other(edge, COMPUTATION)


@LINK.move(DEPARTURES)
def departures(edge: Edge) -> Iterator[str]:
    """Exactly the rows of the batch leave that have all their tokens or sampled the end."""
    yield from _other(edge, DEPARTURES)


# --- the state behind an edge ---------------------------------------------------------------------


@LINK.move("the queues")
def queues(edge: Edge) -> Iterator[str]:
    """Arrivals go to the back of waiting, preempted requests to its front, admitted ones to the
    back of running; who leaves is gone, all others keep their order and what they have.
    """
    before, after = edge.before, edge.after
    if edge.step is None:
        waiting = [row for row in before.waiting if row.id not in edge.left]
        running = [row for row in before.running if row.id not in edge.left]
        for name in (row.id for row in after.waiting if row.id in edge.arrived):
            waiting.append(Sequence(name, edge.ctx.requests[name].prompt_len))
        finished, left = before.finished, edge.left <= after.aborted - before.aborted
    else:
        play = played(edge.ctx, edge.step)
        if play.stopped:
            return
        waiting, running = play.waiting, play.running
        finished = before.finished | {*edge.step.finished}
        left = after.aborted == before.aborted
    yield from _rows("waiting", after.waiting, waiting)
    yield from _rows("running", after.running, running)
    if after.finished != finished or not left:
        yield f"finished {sorted(after.finished)}, aborted {sorted(after.aborted)}"


def _rows(queue: str, found: tuple[Sequence, ...], expected: list[Sequence]) -> Iterator[str]:
    if [*found] == expected:
        return
    ids, due = [row.id for row in found], [row.id for row in expected]
    if ids != due:
        yield f"{queue} {ids}, by the moves {due}"
        return
    for row, other in zip(found, expected, strict=True):
        if row != other:
            yield f"{queue}: {row}, by the moves {other}"


@LINK.move("the pool")
def pool(edge: Edge) -> Iterator[str]:
    """Blocks are taken from the front of the free list and given back to its end, the last of a
    table first, once no table has them. Full blocks are hashed, and the last hashed is found.
    """
    before, after = edge.before.pool, edge.after.pool
    if edge.step is None:
        yield from _given_back(edge)
        keys, cached = before.keys, before.cached
    else:
        play = played(edge.ctx, edge.step)
        if play.stopped:
            return
        if [*after.free] != play.free:
            yield f"free list {[*after.free]}, by the moves {play.free}"
        changed = play.hashed.items()
        keys = {**before.keys, **{block: key for block, key in changed if key is not None}}
        for block in (block for block, key in changed if key is None):
            keys.pop(block, None)
        cached = {**before.cached, **{key: (block,) for key, block in play.named.items()}}
    if after.keys != keys:
        yield f"hashed are {sorted(after.keys)}, by the moves {sorted(keys)}"
    if after.cached != cached:
        yield "the lookup table names other blocks than by the moves"


def _given_back(edge: Edge) -> Iterator[str]:
    """What is wrong with the free list after requests left between two steps."""
    tables, freed = _tables_of(edge.before), list[int]()
    leavers = [row for row in edge.before.running if row.id in edge.left]
    for row in leavers:
        for block in reversed(row.blocks):
            tables[block] -= 1
            freed += [] if tables[block] else [block]
    free = [*edge.before.pool.free, *freed]
    found = [*edge.after.pool.free]
    if len(leavers) > 1:  # in which order they left is not known
        count = len(edge.before.pool.free)
        found, free = ([*some[:count], *sorted(some[count:])] for some in (found, free))
    if found != free:
        yield f"free list {found}, by the moves {free}"


@LINK.move("blocks")
def blocks(edge: Edge) -> Iterator[str]:
    """A running request holds the blocks of its computed tokens, and one more only where it was
    handed out at a boundary; a waiting one holds none. Free are those of the pool that none holds.
    """
    state, config = edge.after, edge.ctx.config
    at_boundary = config.new_block is NewBlock.AT_BOUNDARY
    for row in state.running:
        has_decoded = row.computed > row.prefill_len
        is_early = at_boundary and has_decoded and row.computed % config.block_size == 0
        if len(row.blocks) != _ceil_div(row.computed, config.block_size) + is_early:
            yield f"{row.id} holds {len(row.blocks)} blocks for {row.computed} tokens"
    for row in state.waiting:
        if row.blocks or row.computed or row.hit_blocks:
            yield f"{row.id} waits with blocks {row.blocks} and {row.computed} tokens"
    tables = _tables_of(state)
    if state.pool.references != tables:
        yield f"blocks are counted as {dict(state.pool.references)}, held as {dict(tables)}"
    size = config.num_blocks
    if size is None:
        size = config.max_num_seqs * _ceil_div(config.max_model_len, config.block_size)
    if not len(state.pool.free) + len(tables) == state.pool.size == size:
        yield f"{len(state.pool.free)} of {size} blocks are free, {len(tables)} held"


@LINK.move("slots")
def slots(edge: Edge) -> Iterator[str]:
    """Every computed token has its place in a block of the table. No block is written by two rows
    of a step, nor is a hit written, unless hits are not checked or decoded first.
    """
    config = edge.ctx.config
    for row in edge.after.running:
        if row.computed > len(row.blocks) * config.block_size:
            yield f"{row.id} has {row.computed} tokens in {len(row.blocks)} blocks"
    if edge.step is None:
        return
    is_own = config.hit_check is not HitCheck.NOTHING and config.full_hit is not FullHit.LAST_DECODED
    writers: dict[int, str] = {}
    for row in edge.step.batch if is_own else ():
        first = row.computed - edge.step.scheduled[row.id]
        places = range(first // config.block_size, _ceil_div(row.computed, config.block_size))
        for place in places if first < row.computed else ():
            if place < row.hit_blocks:
                yield f"{row.id} writes its hit {place}"
            elif place < len(row.blocks):
                writer = writers.setdefault(row.blocks[place], row.id)
                if writer != row.id:
                    yield f"{row.id} and {writer} write block {row.blocks[place]}"
