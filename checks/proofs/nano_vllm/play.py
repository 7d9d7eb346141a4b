"""A step of nano-vLLM played on plain lists, by definition.

It is played from the state before it, and from nothing that the reference computes but which
requests end. Hashes of blocks are those of the specification, which NANO-PFX-10 judges.
"""

from collections import Counter, deque

from attrs import define, evolve, field

from checks.harness.once import once
from spec.core.records import DECODE, IDLE, PREFILL, Event
from spec.core.requests import BlockKey
from spec.nano_vllm.block_hashes import content
from spec.nano_vllm.config import (
    FullHit,
    HitCheck,
    MemoryGate,
    NewBlock,
    SequenceLimit,
    TokenGate,
)
from spec.nano_vllm.records import Context, Sequence, State, Step


class OtherMoveError(Exception):
    """The reference makes another move, which the message names."""


def ceil_div(tokens: int, size: int) -> int:
    """The number of blocks for the tokens; the last may be partly full."""
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

    def expect(self, *events: Event) -> None:
        """These events happen next.

        Raises:
            OtherMoveError: something else happens.
        """
        for expected in events:
            event = self.coming.popleft() if self.coming else None
            if event != expected:
                raise OtherMoveError(f"{event} happens, by the moves {expected}")

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
            continues = bool(self.coming) and self.coming[0].transition == "admit"
            if continues and refusal:
                raise OtherMoveError(f"{self.coming[0].id} is admitted, {refusal} refuses {row.id}")
            if refusal is not None:
                break
            if not continues:
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
        computed = sum(other.prefill_len - other.hit_blocks * size for other in due)
        counted = row.prefill_len
        if config.token_gate is TokenGate.NEW_TOKENS:
            counted -= len(hits) * size
        if computed + counted > config.max_num_batched_tokens:
            return "NANO-ADM-1"
        needed = ceil_div(row.prefill_len, size)
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
        fresh = self.take(ceil_div(row.prefill_len, size) - len(hits))
        for block, key in zip(fresh, keys[len(hits) :], strict=False):
            self.hash(block, key)
        self.expect(Event("admit", row.id, "NANO-ADM-4"))
        if hits:
            self.expect(Event("prefix_hit", row.id, "NANO-PFX-5", (), tuple(hits)))
        if fresh:
            self.expect(Event("allocate", row.id, "NANO-ADM-2", tuple(hits), fresh))
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
        self.expect(Event("preempt", victim.id, "NANO-PRE-2"))

    def grown(self, row: Sequence) -> Sequence:
        """The row with its slot; the block that its newest token fills is hashed."""
        full, rest = divmod(row.computed + 1, self.ctx.config.block_size)
        if rest == 0 and row.hit_blocks < full:  # a hit is hashed already
            for block in row.blocks[full - 1 : full]:
                self.hash(block, self.ctx.keys.of(row.id, full)[-1])
        if not self.needs_block(row):
            return row
        fresh = self.take(1)
        self.expect(Event("allocate", row.id, "NANO-DEC-3", row.blocks, fresh))
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
            self.expect(Event("prefill", row.id, "NANO-LIF-9", row.computed, row.prefill_len))
        if kind == DECODE:
            self.expect(Event("decode", "", "NANO-LIF-9"))
        if len(rows) > self.ctx.config.max_num_seqs:
            raise OtherMoveError(f"{len(rows)} rows, at most {self.ctx.config.max_num_seqs}")
        done = {row.id: self._computed(row, row.prefill_len if due else None) for row in rows}
        computed = {row.id: done[row.id].computed - row.computed for row in rows}
        if due and sum(computed.values()) > self.ctx.config.max_num_batched_tokens:
            raise OtherMoveError(f"{computed} tokens are computed, more than the budget")
        if {**step.scheduled} != computed:
            raise OtherMoveError(f"computed {step.scheduled}, by the moves {computed}")
        sampled = {name: len(tokens) for name, tokens in step.outputs.items()}
        if sampled != dict.fromkeys(done, 1):
            raise OtherMoveError(f"sampled {sampled}, by the moves a token each of {[*done]}")
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
            self.expect(Event("finish", row.id, "NANO-LIF-3"))
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
        tables=table_uses(state),
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


def table_uses(state: State) -> Counter[int]:
    """How often each block stands in a table."""
    return Counter(block for row in state.running for block in row.blocks)
