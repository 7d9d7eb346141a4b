"""A draft of a step: the decisions so far, and the pool after them."""

from attrs import define, field

from engine.vllm_v1 import groups
from engine.vllm_v1.blocks import PoolDraft
from engine.vllm_v1.encoder import EncoderDraft
from engine.vllm_v1.plan import (
    Admission,
    Blocks,
    Deferral,
    GiveBack,
    GroupBlocks,
    Growth,
    LoadStart,
    Move,
    Plan,
    Preemption,
    Promotion,
    Tables,
    Turn,
    Verification,
)
from engine.vllm_v1.requests import RequestState
from engine.vllm_v1.running import Batch
from engine.vllm_v1.state import SchedulerState
from spec.core.requests import BlockKey


@define(eq=False)
class Draft:
    """The decisions so far; the state is unchanged.

    `budget`: tokens that are left. `threshold`: most tokens of one request. `running`: requests in
    the running queue. `turns`: by row, its turn. `loads`: loads that begin in this step. `passed`:
    requests that were passed over. `emptied`: requests that released their blocks after a failed
    load. `tables`: block tables in groups of layers, of requests that gave some blocks back in this
    step. `states`: keys of the states that it computes. The other fields are those of `Plan`.
    """

    state: SchedulerState
    pool: PoolDraft
    encoder: EncoderDraft
    budget: int
    threshold: int
    running: int
    batch: Batch | None = None
    grown: list[Growth] = field(factory=list)
    moves: list[Move] = field(factory=list)
    turns: dict[RequestState, Turn] = field(factory=dict)
    loads: list[LoadStart] = field(factory=list)
    passed: list[RequestState] = field(factory=list)
    emptied: set[RequestState] = field(factory=set)
    preempted: list[RequestState] = field(factory=list)
    tables: dict[RequestState, Tables] = field(factory=dict)
    states: set[BlockKey] = field(factory=set)
    refusal: str | None = None
    verification: Verification | None = None

    @staticmethod
    def of(state: SchedulerState) -> "Draft":
        """Nothing is decided."""
        pool, encoder = PoolDraft(state.blocks), EncoderDraft(state.encoder, state.config)
        running = len(state.running.members)
        return Draft(state, pool, encoder, state.budget, state.threshold, running)

    def plan(self) -> Plan:
        """The plan with these decisions."""
        waits = self.state.queue.find
        return Plan(
            self.budget,
            self.batch,
            self.grown,
            self.moves,
            [*self.turns.values()],
            [row for row in self.passed if waits(row.id) is None],
            self.preempted,
            self.refusal,
            self.verification,
            self.encoder.changed,
            self.encoder.gone,
        )

    # Decisions, each once its guard holds.

    def decode_all(self, grown: list[Growth]) -> None:
        """All running rows decode, of which these are handed blocks."""
        running = self.state.running
        self.batch, self.grown = running.batch, grown
        self.budget -= len(running.members)
        for growth in grown:
            self.pool.allocate(len(growth.fresh))
        for row in running.in_order(running.of_length(0)):
            table = next((growth.table for growth in grown if growth.row is row), row.blocks)
            self._register(row, row.registered, running.tokens(row), table)

    def verify_all(self, verification: Verification) -> None:
        """All running rows verify their drafts."""
        self.verification = verification
        self.budget -= verification.tokens
        for growth in verification.grown.values():
            self.pool.allocate(len(growth.fresh))
        for place in verification.full:
            row, grown = verification.rows[place], verification.grown.get(place)
            table = row.blocks if grown is None else grown.table
            self._register(row, row.registered, int(verification.computed[place]) + 1, table)

    def give_turn(self, turn: Turn) -> None:
        """A row computes these tokens; its full blocks of final tokens are registered at once."""
        self.moves.append(turn)
        self.turns[turn.row] = turn
        self.budget -= turn.new
        end = min(turn.computed + turn.new, turn.tokens)
        self._register(turn.row, turn.row.registered, end, turn.table)
        self._register_in_groups(turn.row, turn.further, turn.row.registered, end)

    def give_back(self, row: RequestState, certain: int) -> None:
        """A row releases the blocks that it reads no more behind its `certain` tokens."""
        kept, given = groups.unread(self.state, row, certain)
        if any(given):
            self.moves.append(GiveBack(row, given, kept))
            self.tables[row] = kept
            for blocks in given:
                self.pool.release(blocks)

    def admit(self, admission: Admission, registered: int) -> None:
        """A request runs; `registered`: leading blocks of its table that are registered already."""
        self.moves.append(admission)
        self.turns[admission.row] = admission
        self.budget -= admission.new
        self.running += 1
        end = min(admission.computed + admission.new, admission.tokens)
        self._register(admission.row, registered, end, admission.table)
        self._register_in_groups(admission.row, admission.further, registered, end)

    def preempt(self, victim: RequestState) -> None:
        """Preempt a row; its turn in this step, if any, is undone."""
        self.moves.append(Preemption(victim))
        self.preempted.append(victim)
        self.encoder.give_back(victim)
        turn = self.turns.pop(victim, None)
        if turn is not None:
            self.budget += turn.new
        if not self.state.is_written(victim.id):
            self.pool.release(victim.blocks if turn is None else turn.table)
        further = None if turn is None else turn.further
        for table in further.tables if further else self.tables.get(victim, victim.tables):
            self.pool.release(groups.real(table))

    def promote(self, row: RequestState) -> None:
        """The request's load has ended: it can be scheduled again."""
        self.moves.append(Promotion(row))
        if row.computed:
            self._register(row, row.registered, row.computed, row.blocks)
            loaded = groups.taken(row.tables, row.tables)
            self._register_in_groups(row, loaded, row.registered, row.computed)
        else:
            self.emptied.add(row)
            self.pool.release(row.blocks)

    def load(self, start: LoadStart) -> None:
        """The request waits for its external tokens, which are fetched."""
        self.moves.append(start)
        self.loads.append(start)

    def defer(self, row: RequestState) -> None:
        """The request is passed over; up to 0.28.0 it stands before those that wait from now on."""
        is_moved = not self.state.config.behaviour.holders_first
        if is_moved and self.state.queue.find(row.id) is not None:
            self.moves.append(Deferral(row))

    def _register(self, row: RequestState, known: int, end: int, table: Blocks) -> None:
        whole = end // self.state.alignment * self.state.alignment
        full = whole // self.state.config.block_size
        if full > known and self.state.config.prefix_caching:
            self.state.hash_blocks(row, full)
            self.pool.register(table[known:full], row.hashes[known:full])

    def _register_in_groups(
        self, row: RequestState, further: GroupBlocks | None, known: int, end: int
    ) -> None:
        state = self.state
        if further is None or not (further.tables and state.config.prefix_caching):
            return
        full = range(known * state.config.block_size, end // state.alignment * state.alignment)
        for group, block, key in groups.findable(state, row, further.tables, full):
            self.pool.register((block,), (key,))
            if group.is_mamba:
                self.states.add(key)
