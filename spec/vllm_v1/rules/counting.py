"""Counts for the rules, by definition: tokens and blocks, position by position.

The machine has a closed form for most of this; here it is what the words mean.
"""

from collections import Counter, abc

from spec.core.judging import ids
from spec.vllm_v1.config import Connector, Scheduling, VllmV1Config
from spec.vllm_v1.records import Context, Flight, Sequence, State, Step


def rank(ctx: Context, row: Sequence) -> tuple[int, int]:
    """Priority, then arrival: the lowest is served first."""
    return ctx.requests[row.id].priority, row.arrival


def by_rank(ctx: Context, rows: abc.Iterable[Sequence]) -> list[Sequence]:
    """Running requests, the one that is preempted first at the end."""
    if ctx.config.scheduling is Scheduling.FCFS:
        return [*rows]
    return sorted(rows, key=lambda row: rank(ctx, row))


def token_limit(config: VllmV1Config) -> int:
    """Tokens that a step may compute; by default the model length, 2,048 at least."""
    given = config.max_num_batched_tokens
    return max(config.max_model_len, 2_048) if given is None else given


def pool_blocks(config: VllmV1Config) -> int:
    """Blocks of the pool: as configured, by default enough for all slots at full length."""
    if config.num_blocks is not None:
        return config.num_blocks
    sizes = (group.block_size for group in config.all_groups)
    return config.max_num_seqs * sum(len(range(0, config.max_model_len, size)) for size in sizes)


def cut_at(ctx: Context, step: Step) -> int | None:
    """Most tokens of one request in a step by the threshold, None for any number.

    In 0.33.0 the threshold is for requests that have others beside them.
    """
    # Where it binds alone, too, the state is not read: a log of a server has none.
    if not ctx.config.behaviour.threshold_binds_alone and len(step.before.present) == 1:
        return None
    return ctx.config.long_prefill_token_threshold or None


def positions_due(ctx: Context, step: Step, row: Sequence, budget: int) -> range:
    """Positions that a running request computes at its turn, with this budget left.

    Its tokens and drafts that are not computed, awaited tokens included, without the last position
    of the model length, which a model that pools computes from 0.33.0 on, and of these no more than
    the threshold. None where it awaits its last, or other stages of a pipeline have their steps.
    """
    if awaits_last(ctx, step.before, row) or waits_for_stages(ctx, step.before, row.id):
        return range(row.computed, row.computed)
    config = ctx.config
    is_whole = config.pooling and config.behaviour.pools_last_position
    most = config.max_model_len if is_whole else config.max_model_len - 1
    end = min(row.tokens + row.placeholders + row.drafts, most)
    return up_to_a_state(ctx, row, range(row.computed, end)[: cut_at(ctx, step)][:budget])


def up_to_a_state(
    ctx: Context, row: Sequence, positions: range, junction: int | None = None
) -> range:
    """The first of these positions, up to one behind which a state is to be kept.

    All of them where no group has states, and behind the prompt, or what was sampled before a
    preemption. A chunk that ends before is cut to whole blocks; so are one that begins within a
    block, one that computes the last whole block, and one that passes the end of a prefix that
    other groups had cached. `junction`: that end, if it is not what the request remembers.
    """
    start, stop, size = positions.start, positions.stop, ctx.config.block_size
    last = max(row.prompt_len, row.tokens - 1)
    if start >= last or not ctx.config.has_states:
        return positions
    ends = [end for end in range(start + 1, stop + 1) if end % size == 0]
    if stop < last and not ends:  # a block that no chunk could hold is computed in parts
        most = ctx.config.long_prefill_token_threshold or token_limit(ctx.config)
        return positions if size > min(most, token_limit(ctx.config)) else range(start, start)
    stop = ends[-1] if stop < last else stop
    found = row.tokens - ctx.config.behaviour.keeps_state_for_same_prompt
    parts = row.junction if junction is None else junction
    kept = (parts, found // size * size)
    due = [end for end in ends if end < stop and (start % size or end in kept)]
    return range(start, min(due, default=stop))


def awaited(state: State, request_id: str) -> int:
    """Steps in flight that sample a token for the request."""
    return sum(request_id in flight.samples for flight in state.flights)


def waits_for_stages(ctx: Context, state: State, request_id: str) -> bool:
    """True if one of the last steps samples for the request: as many as there are other stages."""
    stages = ctx.config.steps_in_flight
    since = range(max(len(state.flights) - stages + 1, 0), len(state.flights)) if stages else ()
    return any(request_id in state.flights[place].samples for place in since)


def awaits_last(ctx: Context, state: State, row: Sequence) -> bool:
    """True if the tokens that a running request awaits are all that it may still have."""
    count = awaited(state, row.id)
    return count > 0 and row.generated + count >= ctx.requests[row.id].max_tokens


def received(ctx: Context, step: Step) -> Flight:
    """The tokens whose results came in the step: its own, or those of a step in flight."""
    if ctx.config.steps_in_flight:
        return step.results_of or Flight({})
    rows = (row for row in step.planned.running if row.id in step.scheduled)
    caught_up = (row.id for row in rows if row.computed + step.scheduled[row.id] >= row.tokens)
    return Flight(step.scheduled, tuple(caught_up))


def verified(ctx: Context, step: Step) -> abc.Mapping[str, int]:
    """Drafts by request whose results came in the step: its own, or those of a step in flight.

    Those of a request that has lost its load since are not verified: it awaits nothing of them.
    """
    if ctx.config.steps_in_flight:
        landed = received(ctx, step)
        return {id_: count for id_, count in landed.drafts.items() if id_ in landed.samples}
    return step.drafts


def brought(ctx: Context, step: Step) -> abc.Mapping[str, int]:
    """Tokens by request that the connector should have brought where the step's results come."""
    if ctx.config.steps_in_flight:
        return {} if step.results_of is None else step.results_of.external
    return step.external


def read_by(ctx: Context, step: Step) -> abc.Mapping[str, int]:
    """Tokens by request that its steps without results have read: those before their own.

    These steps are the step itself and those in flight before it.
    """
    rows = {row.id: row for row in step.planned.running}
    if not ctx.config.steps_in_flight:
        return {id_: rows[id_].computed for id_ in step.scheduled if id_ in rows}
    given = [*(flight.scheduled for flight in step.before.flights), step.scheduled]
    return {
        row.id: row.computed - sum(tokens.get(row.id, 0) for tokens in given[:-1])
        for row in rows.values()
        if any(row.id in tokens for tokens in given)
    }


def missing_blocks(ctx: Context, step: Step) -> set[int]:
    """The blocks that lost loads of the step, or of the one in flight, should have filled."""
    lost, read = step.after.lost - step.before.lost, read_by(ctx, step)
    size, missing = ctx.config.block_size, set[int]()
    for row in step.planned.running:
        if row.id in lost and row.id in read:
            end = read[row.id]
            local = (end - brought(ctx, step).get(row.id, 0)) // size
            held = row.blocks[: len(range(0, end, size))]
            missing.update(held[blocks_left(ctx, row.id, local, end) :])
    return missing


def is_written(ctx: Context, state: State, request_id: str) -> bool:
    """True if a step in flight writes to the request's blocks, and a load must not follow it."""
    connects = ctx.config.connector is not Connector.NONE
    return connects and any(request_id in flight.scheduled for flight in state.flights)


def held_up(ctx: Context, step: Step) -> list[str]:
    """Running requests that get nothing because the victim's blocks would be free only later.

    From 0.33.0 on: the first of them lacks blocks, and those behind it have no turn.
    """
    if not ctx.config.behaviour.spares_in_flight:
        return []
    running = [row for row in step.before.running if row.id not in step.preempted]
    free, budget = _free_after_turns(step, running), token_limit(ctx.config)
    for place, row in enumerate(running):
        due = positions_due(ctx, step, row, budget)
        budget -= step.scheduled.get(row.id, 0)
        lacks = lacking_blocks(ctx, needed_slots(ctx, due.stop), len(row.blocks)) > free
        if row.id not in step.scheduled and due and lacks:
            victim = by_rank(ctx, running)[-1]
            is_spared = is_written(ctx, step.before, victim.id)
            return [other.id for other in running[place:]] if is_spared else []
    return []


def _free_after_turns(step: Step, running: abc.Iterable[Sequence]) -> int:
    """Free blocks when each of these running requests has had its turn, and no other request."""
    # A load that has failed may give blocks back later in the step.
    tables = {row.id: row.blocks for row in step.planned.running}
    taken = sum(len(tables[row.id]) - len(row.blocks) for row in running)
    victims = [row for row in step.before.running if row.id in step.preempted]
    given_back = Counter(block for row in victims for block in row.blocks)
    holders = step.before.pool.references
    freed = sum(holders[block] == count for block, count in given_back.items())
    return len(step.before.pool.free) + freed - taken


def wrongly_held_back(
    step: Step, name: str, new: frozenset[str] = frozenset()
) -> abc.Iterator[str]:
    """Check that the step sets no request of this field of the state going, and takes none out.

    One that leaves is waited for no more. `new`: those that its results put there.
    """
    states = (step.before, step.planned, step.after)
    before, planned, after = (getattr(state, name) for state in states)
    if going := before & ({*step.admitted} | ids(step.happened("load", "promote"))):
        yield f"{name}, and go on: {sorted(going)}"
    due = (before | new) & ids(step.after.present)
    if planned != before or after != due:
        yield f"{name}: {sorted(after)}, expected {sorted(due)}"


def is_later_turn(ctx: Context, request_id: str) -> bool:
    """True if the request goes on with the session of another."""
    return request_id in ctx.earlier_turns


def next_turns(ctx: Context, step: Step) -> list[str]:
    """The turns of sessions that are awaited, or go on, since the ones before ended in the step."""
    turns = (ctx.requests[id_].continued_by for id_ in step.finished)
    return [turn for turn in turns if turn is not None]


def turns_behind(ctx: Context, request_ids: abc.Iterable[str]) -> set[str]:
    """All later turns of the sessions of these requests."""
    behind = set[str]()
    for request_id in request_ids:
        turn = ctx.requests[request_id].continued_by
        while turn is not None:
            behind.add(turn)
            turn = ctx.requests[turn].continued_by
    return behind


def places_taken(state: State) -> int:
    """Requests that run, and sessions between two turns: they keep their places."""
    return len(state.running) + len(state.awaited)


def receivers(step: Step) -> abc.Sequence[Sequence]:
    """Requests that may get results: those that run, or that were preempted with some in flight."""
    return step.planned.running if step.results_of is None else step.planned.present


def share(ctx: Context, step: Step, behind: int, budget: int) -> int:
    """Tokens that a request gets at its admission, of those that it has to compute."""
    return len(range(behind)[: cut_at(ctx, step)][:budget])


def most_padding(ctx: Context, computed: int, behind: int) -> int:
    """Padding drafts of a request at its admission where it is filled up (V1-SPC-5)."""
    drafts, behaviour = ctx.config.num_speculative_tokens, ctx.config.behaviour
    has_room = computed + 1 + drafts < ctx.config.max_model_len
    fills_up = behaviour.pads and (has_room or behaviour.padding_needs_length)
    return drafts if behind == 1 and fills_up else 0


def needed_slots(ctx: Context, end: int) -> int:
    """Slots needed to compute the positions below `end`, lookahead included."""
    return len(range(end + ctx.config.num_lookahead_tokens)[: ctx.config.max_model_len])


def needed_blocks(ctx: Context, slots: int) -> int:
    """Blocks that `slots` slots need."""
    return len(range(0, slots, ctx.config.block_size))


def lacking_blocks(ctx: Context, slots: int, held: int) -> int:
    """Blocks that `slots` slots need beyond the `held` ones."""
    size = ctx.config.block_size
    return len(range(held * size, slots, size))


def blocks_to_find(ctx: Context, row: Sequence) -> int:
    """Whole blocks of a request that end before its last token: those that a hit may cover.

    None if it reads no cache.
    """
    size = ctx.config.block_size
    return len(range(size, row.tokens, size)) if ctx.requests[row.id].reads_cache else 0


def blocks_left(ctx: Context, request_id: str, cached: int, end: int) -> int:
    """Leading blocks that count after a lost load up to token `end`: the `cached` ones, and those
    that came.

    The last one of the load never counts.
    """
    size = ctx.config.block_size
    came = range(size, min(ctx.if_lost.get(request_id, 0), end - 1) + 1, size)
    return max(cached, len(came))


def may_be_brought(ctx: Context, request_id: str) -> bool:
    """True but for a request that reads no cache, in 0.33.0: the connector is not asked for it."""
    return ctx.config.behaviour.loads_unread or ctx.requests[request_id].reads_cache


def offered(ctx: Context, state: State, row: Sequence) -> int:
    """Tokens that the connector has of a request; within a step, or where its state is needed, the
    last one is computed.
    """
    if ctx.config.connector is Connector.NONE or row.id in state.lost:
        return 0
    if not may_be_brought(ctx, row.id):
        return 0
    has_states = any(group.is_mamba for group in ctx.config.groups)
    leaves_one = has_states or ctx.config.connector is Connector.SYNC
    return min(ctx.external.get(row.id, 0), row.tokens - leaves_one)


def steps_over(config: VllmV1Config) -> bool:
    """True if a prompt that must not be cut is skipped, rather than ending the admissions."""
    return not config.chunked_prefill and config.behaviour.steps_over_uncut


def caches_results(config: VllmV1Config) -> bool:
    """True if blocks can be found once results fill them, whether or not a step follows."""
    has_verified = config.num_speculative_tokens > 0 and config.behaviour.caches_accepted
    return has_verified or config.steps_in_flight > 0


def cached_throughout(ctx: Context, step: Step, row: Sequence) -> int:
    """Tokens of a waiting request that it has, is offered, or would find in the cache.

    Whenever in the step it is looked at: in blocks that are cached before it and when all is
    decided.
    """
    if row.computed:
        return min(row.computed, row.tokens - 1)
    pools, count = (step.before.pool, step.planned.pool), 0
    if ctx.config.prefix_caching:
        for key in ctx.keys.of(row.id, blocks_to_find(ctx, row)):
            first, second = ({*pool.cached.get(key, ())} for pool in pools)
            if first.isdisjoint(second):
                break
            count += 1
    return max(count * ctx.config.block_size, offered(ctx, step.planned, row))
