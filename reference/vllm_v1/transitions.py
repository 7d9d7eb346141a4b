"""Transitions of a request: a short pure function each, guard first, then effect.

Between steps `arrive`, `abort` and the end of a load or a send change the state. Within a step the
decisions add to a `Plan`; then the planned tokens are computed, at once or in flight, drafts rolled
back, tokens sampled. Source: vllm-v1, the sections named at each function.

Each raises GuardError, with the rule that its guard stands for, where the guard does not hold.
"""

from collections.abc import Iterable, Iterator
from itertools import takewhile

from attrs import evolve, field, frozen

from reference.core import run
from reference.core.frozen_map import FrozenMap
from reference.core.guards import require, require_among, require_new
from reference.vllm_v1 import encoder_cache, groups, kv_cache
from reference.vllm_v1.encoder_cache import Wanted
from reference.vllm_v1.kv_cache import Demand
from spec.core.records import Event
from spec.core.requests import BlockKey, Content
from spec.vllm_v1.config import Connector, Scheduling, rolled_back, valid_after_loss
from spec.vllm_v1.records import Context, Flight, GivenBack, Load, Lookups, Sequence, State

Queue = tuple[Sequence, ...]
Moved = run.Moved[State]


@frozen
class Plan:
    """A step while it is being decided; `budget` is what is left of the tokens.

    `scheduled`: tokens to compute, by request, in the order of the decisions. `drafts`: how many
    of them verify drafts. `external`: tokens that the connector brings to those admitted.
    `victims`: those that were preempted, as they were, and how many tokens they had been given.
    `looked_at`: passed over in this step, in queue order. `loaded`: of those admitted, the ones
    that had loaded. `lookups`: what those that began for the first time asked for and found;
    `resumed_lookups`: the same of those that had been preempted. `threshold`: most tokens of one
    request. `encoder_budget`: what is left of the tokens to encode. `encoded`: the spans to encode,
    by request. `evicted`: contents that made room for them. `states`: keys of the states that its
    chunks leave, or that have been loaded. `refusal`: the rule that ended the walk over the queues.
    """

    state: State
    budget: int
    threshold: int = 0
    scheduled: dict[str, int] = field(factory=dict)
    drafts: dict[str, int] = field(factory=dict)
    external: dict[str, int] = field(factory=dict)
    admitted: tuple[str, ...] = ()
    preempted: tuple[str, ...] = ()
    victims: dict[str, tuple[Sequence, int]] = field(factory=dict)
    looked_at: Queue = ()
    loaded: tuple[str, ...] = ()
    lookups: Lookups = field(factory=Lookups)
    resumed_lookups: Lookups = field(factory=Lookups)
    encoder_budget: int = 0
    encoded: dict[str, tuple[int, ...]] = field(factory=dict)
    evicted: tuple[Content, ...] = ()
    states: frozenset[BlockKey] = frozenset()
    refusal: str | None = None
    events: tuple[Event, ...] = ()

    def with_events(self, *events: Event) -> "Plan":
        """The plan with these events at its end."""
        return evolve(self, events=(*self.events, *events))

    @property
    def in_progress(self) -> Queue:
        """Prompts in progress: chunks to come, a last chunk of this step, and loads."""
        prompts = (row for row in self.state.running if self._is_prompt(row))
        loads = (row for row in (*self.looked_at, *self.state.skipped) if self._has_loaded(row))
        return (*loads, *prompts)

    def _has_loaded(self, row: Sequence) -> bool:
        """True if a load of it has begun, whatever came of it."""
        return bool(row.blocks) or row.id in self.state.lost

    def _is_prompt(self, row: Sequence) -> bool:
        if row.id not in self.admitted:
            return row.prefilling
        return row.id in self.loaded or row.computed + self.scheduled[row.id] < row.tokens


# --- between two steps ----------------------------------------------------------------------


def arrive(ctx: Context, state: State, request_id: str) -> State:
    """A client hands in a request: it goes to its place in the waiting queue.

    Up to 0.28.0 one whose grammar is to be compiled goes to those that were passed over. A turn of
    a session goes on with what is kept for it, where it stands, or waits until the one before ends.
    """
    if request_id in state.awaited:
        return _begin_turn(ctx, state, request_id)
    # guard
    require_new(state, request_id, "V1-LIF-1")
    if (earlier := ctx.earlier_turns.get(request_id)) is not None:
        known = {row.id for row in state.present} - state.awaited | state.early
        require(earlier in known and request_id not in state.early, "arrive", "V1-SES-4")
        return evolve(state, early=state.early | {request_id})
    # effect
    by_priority = ctx.config.scheduling is Scheduling.PRIORITY
    newcomer = Sequence(
        request_id,
        prompt_len=ctx.requests[request_id].prompt_len,
        arrival=len(state.present) + len(state.finished) + len(state.aborted) if by_priority else 0,
    )
    if ctx.config.late_lookups and kv_cache.is_brought(ctx, request_id):
        state = evolve(state, unanswered=state.unanswered | {request_id})
    has_grammar = ctx.requests[request_id].grammar
    if has_grammar:
        state = evolve(state, compiling=state.compiling | {request_id})
    if has_grammar and not ctx.config.behaviour.holders_first:
        return evolve(state, skipped=queued(ctx, (*state.skipped, newcomer)))
    return evolve(state, waiting=queued(ctx, (*state.waiting, newcomer)))


def _begin_turn(ctx: Context, state: State, request_id: str) -> State:
    """The tokens of a turn stand behind those that are kept."""
    kept = next(row for row in state.skipped if row.id == request_id)
    turn = evolve(kept, prompt_len=ctx.requests[request_id].prompt_len)
    skipped = replaced(state.skipped, turn)
    return evolve(state, skipped=skipped, awaited=state.awaited - {request_id})


def answer(_ctx: Context, state: State, request_id: str) -> State:
    """The connector says what it has of a request."""
    # guard
    require(request_id in state.unanswered, "answer", "V1-EXT-13")
    # effect
    return evolve(state, unanswered=state.unanswered - {request_id})


def compiled(_ctx: Context, state: State, request_id: str) -> State:
    """The grammar of a request is ready."""
    # guard
    require(request_id in state.compiling, "compiled", "V1-STR-1")
    # effect
    return evolve(state, compiling=state.compiling - {request_id})


def queued(ctx: Context, queue: Queue) -> Queue:
    """The queue in the order in which it is served."""
    if ctx.config.scheduling is Scheduling.FCFS:
        return queue
    return tuple(sorted(queue, key=lambda row: rank(ctx, row)))


def rank(ctx: Context, sequence: Sequence) -> tuple[int, int]:
    """Priority, then arrival: the lowest is served first, the highest is preempted."""
    return ctx.requests[sequence.id].priority, sequence.arrival


def abort(ctx: Context, state: State, request_id: str, new_tokens: int = 0) -> State:
    """A client goes away: the request leaves, in any phase, and releases what it holds.

    `new_tokens`: those that the step computes while it leaves.
    """
    # guard
    leaver = require_among(state.present, request_id, "abort", "V1-LIF-3")
    # effect
    left = _left(ctx, state, leaver, leaver.computed - new_tokens)
    return evolve(left, aborted=state.aborted | {request_id})


def _left(ctx: Context, state: State, leaver: Sequence, computed: int) -> State:
    """The request is in no queue, and its blocks are free.

    Blocks that a load is still writing to, or that are to be sent, are kept until then. With a
    connector, those that the token behind the `computed` ones does not read are free first (vLLM
    0.28.0).
    """
    if ctx.config.connector is not Connector.NONE:
        pool, leaver, _ = groups.without_unread(ctx, state.pool, leaver, computed)
        state = evolve(state, pool=pool)
    is_sent = ctx.config.sends and leaver.computed > 0
    others = evolve(
        encoder_cache.given_back(ctx, without(state, leaver.id), leaver.id),
        unreported=state.unreported | {leaver.id},
        unanswered=state.unanswered - {leaver.id},
        compiling=state.compiling - {leaver.id},
        awaited=state.awaited - {leaver.id},
        early=state.early - _turns_behind(ctx, leaver.id),
        preempted=state.preempted - {leaver.id},
    )
    load = Load.LOADING if leaver.load is Load.LOADING else Load.NONE
    if load is Load.NONE and not is_sent:
        return give_back(ctx, others, leaver)
    gone = evolve(leaver, drafts=0, placeholders=0, prefilling=False, load=load, sending=is_sent)
    return evolve(others, draining=(*state.draining, gone))


def _turns_behind(ctx: Context, request_id: str) -> frozenset[str]:
    """The later turns of its session; the usual request has none."""
    turn = ctx.requests[request_id].continued_by
    return frozenset() if turn is None else _turns_behind(ctx, turn) | {turn}


def give_back(ctx: Context, state: State, row: Sequence) -> State:
    """A request's blocks are free, or will be: later if a step in flight writes to them.

    Then they wait for the results of all that are in flight now (vLLM 0.28.0).
    """
    if not (row.blocks and is_written(ctx, state, row.id)):
        return evolve(state, pool=kv_cache.free_tables(ctx, state.pool, row))
    last = max(place for place, flight in enumerate(state.flights) if flight.scheduled)
    flight = state.flights[last]
    late = evolve(flight, frees=(*flight.frees, GivenBack(row.id, row.blocks)))
    return evolve(state, flights=(*state.flights[:last], late, *state.flights[last + 1 :]))


def is_written(ctx: Context, state: State, request_id: str) -> bool:
    """True if the request's blocks may not be used yet: a step in flight writes to them."""
    return ctx.config.frees_late and any(request_id in flight.scheduled for flight in state.flights)


def without(state: State, request_id: str) -> State:
    """The state without the request in any queue."""

    def others(queue: Iterable[Sequence]) -> Queue:
        return tuple(row for row in queue if row.id != request_id)

    return evolve(
        state,
        waiting=others(state.waiting),
        skipped=others(state.skipped),
        running=others(state.running),
    )


def end_load(ctx: Context, state: State, request_id: str, failed: bool = False) -> State:
    """The connector reports a load: complete, or failed from one of its blocks on."""
    # guard
    present = (*state.skipped, *state.draining)
    loading = require_among(present, request_id, "end_load", "V1-EXT-1")
    require(loading.load is Load.LOADING, "end_load", "V1-EXT-1")
    # effect
    if loading in state.draining:
        return _transferred(ctx, state, evolve(loading, load=Load.NONE))
    kept = valid_tokens(ctx, state, loading) if failed else loading.computed
    ended = evolve(loading, load=Load.FAILED if failed else Load.LOADED, computed=kept)
    lost = state.lost | {request_id} if failed else state.lost
    return evolve(state, skipped=replaced(state.skipped, ended), lost=lost)


def end_send(ctx: Context, state: State, request_id: str) -> State:
    """The connector has sent the blocks of a request that has left, or given it up."""
    # guard
    row = require_among(state.draining, request_id, "end_send", "V1-EXT-12")
    require(row.sending, "end_send", "V1-EXT-12")
    # effect
    return _transferred(ctx, state, evolve(row, sending=False))


def _transferred(ctx: Context, state: State, row: Sequence) -> State:
    """A request that has left gives its blocks back once nothing writes to or sends them."""
    if row.sending or row.load is Load.LOADING:
        return evolve(state, draining=replaced(state.draining, row))
    others = tuple(other for other in state.draining if other.id != row.id)
    return give_back(ctx, evolve(state, draining=others), row)


def valid_tokens(ctx: Context, state: State, sequence: Sequence) -> int:
    """Tokens in the blocks before the first that the connector did not fill: cached, or come."""
    cached = [*takewhile(state.pool.keys.__contains__, sequence.blocks)]
    start, size = len(cached) * ctx.config.block_size, ctx.config.block_size
    came = ctx.if_lost.get(sequence.id, 0)
    return int(valid_after_loss(start, sequence.computed, came, size))


def replaced(queue: Queue, sequence: Sequence) -> Queue:
    """The queue with `sequence` in the place of the request of its name."""
    return tuple(sequence if row.id == sequence.id else row for row in queue)


# --- decisions about running requests -------------------------------------------------------


def look_for_encodings(
    ctx: Context, plan: Plan, sequence: Sequence, start: int, new_tokens: int
) -> tuple[Plan, Wanted]:
    """What tokens of a request from `start` on ask of the encoder; what is cached it takes at once.

    What must go to make room goes at once, too (vLLM 0.28.0).
    """
    budget, cache = plan.encoder_budget, plan.state.encoder
    wanted = encoder_cache.want(ctx, cache, sequence, start, new_tokens, budget)
    if wanted.cache == cache:
        return plan, wanted
    state = evolve(plan.state, encoder=wanted.cache)
    return evolve(plan, state=state, evicted=(*plan.evicted, *wanted.evicted)), wanted


def encode(ctx: Context, plan: Plan, sequence: Sequence, wanted: Wanted) -> Plan:
    """The step encodes the spans of a request that its tokens read and that are not cached."""
    # guard
    spans = ctx.requests[sequence.id].encoder_spans
    tokens = sum(spans[index].content.tokens for index in wanted.new)
    require(sequence.id in plan.scheduled, "encode", "V1-ENC-1")
    require(tokens <= plan.encoder_budget, "encode", "V1-ENC-3")
    # effect
    if not wanted.new:
        return plan
    now = evolve(wanted, cache=plan.state.encoder)
    return evolve(
        plan,
        state=evolve(plan.state, encoder=encoder_cache.encoded(ctx, now, sequence)),
        encoder_budget=plan.encoder_budget - tokens,
        encoded={**plan.encoded, sequence.id: wanted.new},
    ).with_events(Event("encode", sequence.id, "V1-ENC-1", (), wanted.new))


def catch_up(ctx: Context, plan: Plan, sequence: Sequence, new_tokens: int) -> Plan:
    """A running request is given tokens and their slots (vllm-v1, "The Fundamental Insight")."""
    # guard
    require(sequence in plan.state.running, "catch_up", "V1-OUT-1")
    require(0 < new_tokens <= plan.budget, "catch_up", "V1-BUD-1")
    # effect
    demand = Demand(new=new_tokens)
    pool, grown = kv_cache.allocate_slots(ctx, plan.state.pool, sequence, demand)
    awaited = sequence.tokens + sequence.placeholders
    drafts = max(sequence.computed + new_tokens - awaited, 0)
    state = evolve(
        plan.state, pool=pool, running=replaced(plan.state.running, evolve(grown, drafts=0))
    )
    states = plan.states | groups.fresh_states(ctx, plan.state.pool, pool, grown, sequence.tables)
    scheduled = _scheduled(plan, sequence.id, new_tokens, drafts)
    return evolve(scheduled, state=state, states=states).with_events(
        *_allocation(sequence, grown, demand),
        Event("catch_up", sequence.id, "V1-BUD-3", sequence.computed, new_tokens),
    )


def _scheduled(plan: Plan, request_id: str, new_tokens: int, drafts: int) -> Plan:
    """The plan with these tokens in it, taken off the budget."""
    return evolve(
        plan,
        budget=plan.budget - new_tokens,
        scheduled={**plan.scheduled, request_id: new_tokens},
        drafts={**plan.drafts, request_id: drafts} if drafts else plan.drafts,
    )


def _allocation(before: Sequence, after: Sequence, demand: Demand) -> tuple[Event, ...]:
    """The events of the blocks that were handed out, if there were any."""
    new = after.blocks[len(before.blocks) + len(demand.hits) :]
    first = (Event("allocate", after.id, "V1-KV-8", before.blocks, new),) if new else ()
    return (*first, *_group_events("allocate_in_group", before, after, demand.further_hits))


def _group_events(
    transition: str, before: Sequence, after: Sequence, hits: groups.Tables
) -> Iterator[Event]:
    """By group of layers the blocks at the end of its table, behind what it held and its hits."""
    for number, table in enumerate(after.tables, start=1):
        held = sum(len(tables[number - 1]) for tables in (before.tables, hits) if tables)
        if blocks := groups.real((table[held:],)):
            yield Event(transition, after.id, "V1-GRP-11", number, blocks)


def give_back_unread(ctx: Context, plan: Plan, sequence: Sequence) -> tuple[Plan, Sequence]:
    """Before its turn a running request gives back the blocks that it reads no more (vLLM 0.28.0).

    They are those behind the windows of groups of layers, and states that were continued. What is
    in flight still reads its own, and so do tokens that follow rejected drafts.
    """
    # guard
    require(sequence in plan.state.running, "give_back_unread", "V1-OUT-1")
    # effect
    certain = sequence.computed - plan.state.in_flight(sequence.id)
    pool, row, given = groups.without_unread(ctx, plan.state.pool, sequence, certain)
    if not given:
        return plan, sequence
    state = evolve(plan.state, pool=pool, running=replaced(plan.state.running, row))
    events = (Event("give_back", row.id, "V1-GRP-2", *one_group) for one_group in given)
    return evolve(plan, state=state).with_events(*events), row


def preempt(ctx: Context, plan: Plan, victim: Sequence) -> Plan:
    """Take everything but its tokens from a running request: it waits first in the queue.

    What it was given in this step is taken back (vllm-v1, "Memory Management & Preemption";
    the refund is vLLM 0.28.0's). Its cached blocks may be found again when it returns. A token that
    a step in flight samples for it will still be delivered, unless what it computed is to be sent:
    it could end with it, and has lost that.
    """
    # guard
    require(victim in plan.state.running, "preempt", "V1-PRE-1")
    # effect
    nothing = evolve(victim, computed=0, blocks=(), tables=(), junction=0, grown_from=0)
    again = evolve(nothing, drafts=0, placeholders=0, prefilling=False)
    freed = give_back(ctx, without(plan.state, victim.id), victim)
    freed = encoder_cache.given_back(ctx, freed, victim.id)
    spans = ctx.requests[victim.id].encoder_spans
    refund = sum(spans[index].content.tokens for index in plan.encoded.get(victim.id, ()))
    if ctx.config.sends:
        freed = _unawaited(freed, victim.id)
    state = evolve(
        freed,
        waiting=queued(ctx, (again, *plan.state.waiting)),
        preempted=plan.state.preempted | {victim.id},
    )
    return evolve(
        plan,
        state=state,
        budget=plan.budget + plan.scheduled.get(victim.id, 0),
        scheduled={id_: count for id_, count in plan.scheduled.items() if id_ != victim.id},
        drafts={id_: count for id_, count in plan.drafts.items() if id_ != victim.id},
        encoder_budget=plan.encoder_budget + refund,
        encoded={id_: spans for id_, spans in plan.encoded.items() if id_ != victim.id},
        preempted=(*plan.preempted, victim.id),
        victims={**plan.victims, victim.id: (victim, plan.scheduled.get(victim.id, 0))},
    ).with_events(Event("preempt", victim.id, "V1-PRE-1"))


def _unawaited(state: State, request_id: str) -> State:
    """The steps in flight sample nothing for the request any more."""
    flights = (
        evolve(flight, samples=tuple(id_ for id_ in flight.samples if id_ != request_id))
        for flight in state.flights
    )
    return evolve(state, flights=tuple(flights))


# --- decisions about waiting requests -------------------------------------------------------


def pass_over(_ctx: Context, plan: Plan, sequence: Sequence) -> Plan:
    """A request that cannot run yet leaves its place to the next (vLLM 0.28.0)."""
    # guard
    require(sequence in plan.state.queued, "pass_over", "V1-ORD-2")
    # effect
    state = without(plan.state, sequence.id)
    return evolve(plan, state=state, looked_at=(*plan.looked_at, sequence))


def promote(ctx: Context, plan: Plan, sequence: Sequence) -> tuple[Plan, Sequence]:
    """A request whose load has ended is schedulable again: what was loaded is cached now.

    One token is left to compute. Where nothing valid was loaded its blocks are given back.
    """
    # guard
    require(sequence.load in (Load.LOADED, Load.FAILED), "promote", "V1-EXT-1")
    # effect
    pool, states = plan.state.pool, plan.states
    ready = evolve(sequence, load=Load.NONE)
    if ready.computed:
        pool = kv_cache.cache_blocks(ctx, pool, ready, ready.computed)
        states |= groups.fresh_states(ctx, plan.state.pool, pool, ready, ready.tables)
        ready = evolve(ready, computed=min(ready.computed, ready.tokens - 1))
    else:
        pool = kv_cache.free_tables(ctx, pool, ready)
        ready = evolve(ready, blocks=(), tables=(), junction=0)
    state = evolve(plan.state, pool=pool, skipped=replaced(plan.state.skipped, ready))
    promoted = evolve(plan, state=state, states=states)
    return promoted.with_events(Event("promote", ready.id, "V1-EXT-3")), ready


def load(ctx: Context, plan: Plan, sequence: Sequence, demand: Demand) -> Plan:
    """External keys and values are fetched: the request gets its blocks, and waits for them."""
    # guard
    require(demand.is_load and demand.external > 0, "load", "V1-EXT-2")
    # effect
    pool, grown = kv_cache.allocate_slots(ctx, plan.state.pool, sequence, demand)
    loading = evolve(grown, load=Load.LOADING)
    state = evolve(without(plan.state, sequence.id), pool=pool)
    begun = _with_lookups(ctx, plan, sequence, demand)
    return evolve(begun, state=state, looked_at=(*plan.looked_at, loading)).with_events(
        *_taken(sequence, grown, demand),
        Event("load", sequence.id, "V1-EXT-2", demand.external, grown.computed),
    )


def _with_lookups(ctx: Context, plan: Plan, sequence: Sequence, demand: Demand) -> Plan:
    """The plan with the lookups of a request that begins, apart if it had been preempted."""
    if sequence.id in plan.state.preempted:
        return evolve(plan, resumed_lookups=_asked(ctx, plan.resumed_lookups, sequence, demand))
    return evolve(plan, lookups=_asked(ctx, plan.lookups, sequence, demand))


def _asked(ctx: Context, so_far: Lookups, sequence: Sequence, demand: Demand) -> Lookups:
    """The lookups with those of a request that begins; one that has loaded asks nothing."""
    if sequence.computed:
        return so_far
    local = len(demand.hits) * ctx.config.block_size
    caches = ctx.config.prefix_caching and ctx.requests[sequence.id].reads_cache
    connects = ctx.config.connector is not Connector.NONE
    return Lookups(
        so_far.asked + caches * sequence.tokens,
        so_far.found + local,
        so_far.asked_external + connects * (sequence.tokens - local),
        so_far.found_external + demand.external,
    )


def _taken(before: Sequence, after: Sequence, demand: Demand) -> tuple[Event, ...]:
    """The events of hits and new blocks."""
    hits = demand.hits
    hit = (Event("prefix_hit", after.id, "V1-KV-4", (), hits),) if hits else ()
    tables = zip(after.tables, demand.further_hits, strict=False)
    further = (
        Event("hit_in_group", after.id, "V1-GRP-5", number, blocks)
        for number, (table, found) in enumerate(tables, start=1)
        if (blocks := groups.real((table[: len(found)],)))
    )
    return (*hit, *further, *_allocation(before, after, demand))


def admit(ctx: Context, plan: Plan, sequence: Sequence, demand: Demand, padding: int = 0) -> Plan:
    """A waiting request runs, at the end of the running queue (vllm-v1, same section).

    `padding` of its tokens stand for drafts that were never made, to be rejected.
    """
    # guard
    require(sequence in plan.state.queued, "admit", "V1-ORD-2")
    require(not plan.preempted, "admit", "V1-PRE-4")
    require(len(plan.state.running) < ctx.config.max_num_seqs, "admit", "V1-SEQ-1")
    require(0 < demand.new <= plan.budget, "admit", "V1-BUD-1")
    # effect
    pool, grown = kv_cache.allocate_slots(ctx, plan.state.pool, sequence, demand)
    left = without(plan.state, sequence.id)
    brought = {sequence.id: demand.external} if demand.external else {}
    begun = _with_lookups(ctx, plan, sequence, demand)
    return evolve(
        _scheduled(begun, sequence.id, demand.new, padding),
        state=evolve(
            left,
            pool=pool,
            running=(*left.running, grown),
            preempted=left.preempted - {sequence.id},
        ),
        admitted=(*plan.admitted, sequence.id),
        states=plan.states
        | groups.fresh_states(
            ctx, plan.state.pool, pool, grown, (*sequence.tables, *demand.further_hits)
        ),
        loaded=(*plan.loaded, sequence.id) if sequence in plan.state.skipped else plan.loaded,
        external={**plan.external, **brought},
    ).with_events(
        *_taken(sequence, grown, demand),
        Event("admit", sequence.id, "V1-ORD-2", grown.computed, demand.new),
    )


# --- what the step computes -----------------------------------------------------------------


def compute(_ctx: Context, state: State, scheduled: dict[str, int]) -> State:
    """Every scheduled token is computed; a request with more to come is in its prefill."""
    # guard
    running = {row.id for row in state.running}
    require(scheduled.keys() <= running, "compute", "V1-OUT-1")
    # effect
    rows = []
    for row in state.running:
        computed = row.computed + scheduled.get(row.id, 0)
        is_scheduled = row.id in scheduled
        due = row.tokens + row.placeholders
        prefilling = computed < due if is_scheduled else row.prefilling
        rows.append(evolve(row, computed=computed, prefilling=prefilling))
    return evolve(state, running=tuple(rows))


def launch(ctx: Context, plan: Plan) -> State:
    """A step is in flight, also one without tokens: its tokens count as computed.

    Each request whose tokens are all computed, those awaited included, awaits one more, and its
    drafts. It is verified next with as many drafts as may be proposed: which they are is known
    where they are computed (vLLM 0.28.0, `AsyncScheduler`).
    """
    # guard
    scheduled, drafts = plan.scheduled, plan.drafts
    require(len(plan.state.flights) <= ctx.config.steps_in_flight, "launch", "V1-ASY-1")
    # effect
    ahead, most = compute(ctx, plan.state, scheduled), ctx.config.num_speculative_tokens
    samples = {row.id for row in ahead.running if row.id in scheduled and not row.prefilling}
    rows = (
        evolve(row, placeholders=row.placeholders + 1 + drafts.get(row.id, 0), drafts=most)
        if row.id in samples
        else row
        for row in ahead.running
    )
    flight = Flight(
        FrozenMap(scheduled),
        tuple(id_ for id_ in scheduled if id_ in samples),
        FrozenMap(drafts),
        tuple(id_ for id_ in drafts if id_ in plan.admitted),
        FrozenMap(plan.external),
    )
    return evolve(ahead, running=tuple(rows), flights=(*plan.state.flights, flight))


def land(ctx: Context, state: State) -> State:
    """The results of the oldest step in flight have come: what it still wrote to is free."""
    # guard
    require(bool(state.flights), "land", "V1-ASY-1")
    # effect
    pool = state.pool
    for table in state.flights[0].frees:
        pool = kv_cache.free(ctx, pool, table.blocks)
    return evolve(state, flights=state.flights[1:], pool=pool)


def lose_load(_ctx: Context, state: State, request_id: str, external: int) -> Moved:
    """What the connector should have brought in this step is not there, and not offered again."""
    # guard
    require_among(state.running, request_id, "lose_load", "V1-EXT-4")
    require(external > 0, "lose_load", "V1-EXT-4")
    # effect
    event = Event("lose_load", request_id, "V1-EXT-4", external)
    return evolve(state, lost=state.lost | {request_id}), (event,)


def undo(_ctx: Context, state: State, request_id: str, valid_tokens: int) -> Moved:
    """A request that read what was not there has only its valid tokens computed.

    The blocks stay with it; it goes on from there in the next step. What steps in flight sample for
    it is not awaited: they have read it, too.
    """
    # guard
    row = require_among(state.running, request_id, "undo", "V1-EXT-4")
    require(0 <= valid_tokens < row.computed, "undo", "V1-EXT-4")
    # effect
    back = evolve(row, computed=valid_tokens, drafts=0, placeholders=0, prefilling=True)
    event = Event("undo", request_id, "V1-EXT-4", row.computed, valid_tokens)
    others = _unawaited(state, request_id)
    return evolve(others, running=replaced(state.running, back)), (event,)


def rollback(_ctx: Context, state: State, request_id: str, drafts: int, accepted: int) -> Moved:
    """The rejected drafts are not computed any more, nor awaited (vllm-v1, "Rollback Logic")."""
    # guard
    row = require_among(state.running, request_id, "rollback", "V1-SPC-2")
    require(0 <= accepted <= drafts, "rollback", "V1-SPC-2")
    # effect
    computed = int(rolled_back(row.computed, drafts, accepted))
    awaited = row.placeholders and int(rolled_back(row.placeholders, drafts, accepted))
    back = evolve(row, computed=computed, placeholders=awaited)
    event = Event("rollback", request_id, "V1-SPC-2", drafts, accepted)
    return evolve(state, running=replaced(state.running, back)), (event,)


def sample(_ctx: Context, state: State, request_id: str) -> State:
    """A request whose tokens are all computed gains one."""
    # guard
    row = require_among(state.running, request_id, "sample", "V1-PRG-2")
    require(row.computed >= row.tokens, "sample", "V1-PRG-2")
    # effect
    longer = evolve(row, generated=row.generated + 1)
    return evolve(state, running=replaced(state.running, longer))


def propose(ctx: Context, state: State, request_id: str, drafts: int) -> State:
    """A drafter proposes tokens of a request that has sampled, to be verified next time."""
    # guard
    row = require_among(state.running, request_id, "propose", "V1-SPC-6")
    require(0 <= drafts <= ctx.config.num_speculative_tokens, "propose", "V1-SPC-6")
    # effect
    return evolve(state, running=replaced(state.running, evolve(row, drafts=drafts)))


def receive(_ctx: Context, state: State, request_id: str) -> State:
    """A request gets the token that it awaited; one that was preempted meanwhile waits with it."""
    # guard
    row = require_among(state.present, request_id, "receive", "V1-PRG-2")
    is_running = row in state.running
    require(row.placeholders > 0 or not is_running, "receive", "V1-ASY-3")
    # effect
    longer = evolve(row, generated=row.generated + 1, placeholders=max(row.placeholders - 1, 0))
    if is_running:
        return evolve(state, running=replaced(state.running, longer))
    return evolve(
        state,
        waiting=replaced(tuple(state.waiting), longer),
        skipped=replaced(state.skipped, longer),
    )


def cache_sampled(ctx: Context, state: State, request_id: str) -> State:
    """Lookups find the blocks that a request has filled, with its accepted drafts, at once.

    Its newest token is not computed. Without drafts and steps in flight they find them already
    (vLLM 0.33.0).
    """
    # guard
    row = require_among(state.running, request_id, "cache_sampled", "V1-KV-17")
    require(row.computed >= row.tokens - 1, "cache_sampled", "V1-KV-17")
    # effect
    return evolve(state, pool=kv_cache.cache_blocks(ctx, state.pool, row, row.tokens - 1))


def finish(ctx: Context, state: State, request_id: str, beyond: int = 0) -> Moved:
    """A request that has all its tokens leaves at once and gives its blocks back.

    If another turn of its session follows, that one has them instead. From 0.33.0 on the `beyond`
    drafts that were accepted behind its end do not count as computed.
    """
    # guard
    row = require_among(state.present, request_id, "finish", "V1-LIF-4")
    # effect
    if ctx.config.behaviour.trims_at_end and row in state.running:
        row = evolve(row, computed=row.computed - beyond)
    turn = ctx.requests[request_id].continued_by
    left = (
        _left(ctx, state, row, row.computed) if turn is None else _kept_for(ctx, state, row, turn)
    )
    finished = evolve(left, finished=state.finished | {request_id})
    return finished, (Event("finish", request_id, "V1-LIF-4"),)


def _kept_for(ctx: Context, state: State, row: Sequence, turn: str) -> State:
    """The next turn of a session has the blocks of the one that ends, and what it computed.

    The last token that was sampled is left out: it is not computed. Until its client sends it, the
    turn stands behind those that were passed over; so does one that was sent early, but up to
    0.28.0 behind those that wait (vLLM 0.28.0).
    """
    kept = Sequence(turn, prompt_len=row.computed, computed=row.computed, blocks=row.blocks)
    others = evolve(without(state, row.id), preempted=state.preempted - {row.id})
    if turn not in state.early:
        skipped = (*others.skipped, kept)
        return evolve(others, skipped=skipped, awaited=state.awaited | {turn})
    begun = evolve(kept, prompt_len=ctx.requests[turn].prompt_len)
    others = evolve(others, early=state.early - {turn})
    if ctx.config.behaviour.holders_first:
        return evolve(others, skipped=(*others.skipped, begun))
    return evolve(others, waiting=(*others.waiting, begun))
