"""One scheduler step: the running requests first, then the waiting ones, then the results.

With steps in flight the results are those of an earlier step, if any (`EngineCore` of vLLM 0.28.0).
Source: vllm-v1, "Token Budget Management" and "Memory Management & Preemption"; the ends of
both loops are those of the release.
"""

from collections.abc import Callable, Container

from attrs import define, evolve, field, frozen

from reference.core.run import Run
from reference.vllm_v1 import encoder_cache, groups, kv_cache, transitions, unfilled
from reference.vllm_v1.kv_cache import Demand, computed_with, is_brought
from reference.vllm_v1.transitions import Moved, Plan
from spec.core.arithmetic import cdiv
from spec.core.records import Event
from spec.vllm_v1.config import (
    Connector,
    Scheduling,
    is_last_in_flight,
    running_tokens,
    valid_after_loss,
    waiting_tokens,
)
from spec.vllm_v1.records import Context, Flight, Load, Sequence, State, Statistics, Step


@frozen
class Environment:
    """What the scheduler does not decide.

    `ends`: does the request sample end-of-sequence as its last token? `accepted`: how many of
    its drafts are verified? `proposes`: how many drafts of at most so many has the drafter next?
    `loses`: is what the connector should have brought not there? `leavers`: whose clients go away
    while the model runs.
    """

    ends: Callable[[Sequence], bool]
    accepted: Callable[[Sequence, int], int] = lambda _one, drafts: drafts
    proposes: Callable[[Sequence, int], int] = lambda _one, most: most
    loses: Callable[[str], bool] = lambda _id: False
    leavers: tuple[str, ...] = ()


def scheduler_step(
    ctx: Context, state: State, environment: Environment, index: int = 0, time: float = 0
) -> Step:
    """What the scheduler does next, and the state that it leaves; `time` is only noted."""
    plan = schedule(ctx, state)
    if ctx.config.steps_in_flight:
        results = _in_flight(ctx, state, plan, environment)
    else:
        results = _at_once(ctx, plan, environment)
    after = results.state
    if state.unfilled or plan.preempted or results.missing:
        undone = results.ids_of("undo")
        left = unfilled.after_step(ctx, state, plan, after, results.missing, undone)
        after = evolve(after, unfilled=left)
    return Step(
        index=index,
        time=time,
        before=state,
        planned=plan.state,
        after=after,
        scheduled=plan.scheduled,
        drafts=plan.drafts,
        admitted=plan.admitted,
        external=plan.external,
        preempted=plan.preempted,
        budget_left=plan.budget,
        refusal=plan.refusal,
        reported=tuple(sorted(state.unreported)),
        statistics=statistics(results.state),
        lookups=plan.lookups,
        resumed_lookups=plan.resumed_lookups,
        masked=masked(ctx, plan),
        encoded=tuple(plan.encoded.items()),
        evicted=tuple(gone for gone in plan.evicted if gone not in plan.state.encoder.contents),
        outputs=results.outputs,
        accepted=results.accepted,
        proposed=results.proposed,
        failed_loads=results.ids_of("undo"),
        finished=results.ids_of("finish"),
        events=(*plan.events, *results.events),
        results_of=results.flight,
    )


def schedule(ctx: Context, state: State) -> Plan:
    """The decisions: running requests first, then the queues."""
    threshold = ctx.config.threshold_among(len(state.present))
    plan = Plan(
        evolve(state, unreported=frozenset()),
        ctx.config.token_budget,
        threshold,
        encoder_budget=ctx.config.encoder_budget,
    )
    return _waiting_unless_preempted(ctx, schedule_running(ctx, plan))


def masked(ctx: Context, plan: Plan) -> tuple[str, ...]:
    """The requests with a grammar whose tokens will all be computed: they sample."""
    rows = {row.id: row for row in plan.state.running if ctx.requests[row.id].grammar}
    return tuple(
        id_
        for id_, count in plan.scheduled.items()
        if id_ in rows and rows[id_].computed + count >= rows[id_].tokens + rows[id_].placeholders
    )


def statistics(state: State) -> Statistics:
    """How many wait and run, and how much of the pool is held (vllm-v1, "Real-World Tuning")."""
    usage = 1 - len(state.pool.free) / state.pool.size
    return Statistics(len(state.queued), len(state.running), usage)


# --- running --------------------------------------------------------------------------------------


def schedule_running(ctx: Context, plan: Plan) -> Plan:
    """Each running request catches up, in queue order, as long as there is budget.

    Where slots are lacking a request is preempted; up to 0.28.0 one that has to preempt itself ends
    the loop, in 0.33.0 one whose victim is in flight. Where a step in flight brings its last token
    there is nothing to catch up. Behind a step that samples for it, the other stages of a pipeline
    have their steps first.
    """
    config, threshold = ctx.config, plan.threshold
    for row in plan.state.running:
        if row.id in plan.preempted or (row.placeholders and _is_last_in_flight(ctx, row)):
            continue
        if plan.state.has_just_sampled(row.id, config.steps_in_flight - 1):
            continue
        behind = (row.tokens + row.placeholders, row.drafts, row.computed)
        new = int(running_tokens(*behind, threshold, plan.budget, config.most_positions))
        new = groups.chunk(ctx, row, row.computed, new, row.junction)
        if new <= 0:
            continue
        plan, encodings = transitions.look_for_encodings(ctx, plan, row, row.computed, new)
        new = encodings.tokens
        if new == 0:
            continue
        if config.groups:
            plan, row = transitions.give_back_unread(ctx, plan, row)
        plan = _make_room(ctx, plan, row, new)
        if row.id in plan.preempted:
            if config.behaviour.own_preemption_ends_turns:
                break
        elif config.frees_late and not kv_cache.fits(ctx, plan.state.pool, row, Demand(new=new)):
            break
        else:
            plan = transitions.catch_up(ctx, plan, row, new)
            plan = transitions.encode(ctx, plan, row, encodings)
    return plan


def _is_last_in_flight(ctx: Context, row: Sequence) -> bool:
    ahead = (row.computed, row.placeholders, row.prompt_len)
    return bool(is_last_in_flight(*ahead, ctx.requests[row.id].max_tokens))


def _make_room(ctx: Context, plan: Plan, sequence: Sequence, new_tokens: int) -> Plan:
    """Preempt until the request's new tokens find their slots, or until it is the victim.

    In 0.33.0 also until the victim's blocks would be free only later.
    """
    demand = Demand(new=new_tokens)
    while not kv_cache.fits(ctx, plan.state.pool, sequence, demand):
        victim = choose_victim(ctx, plan.state)
        is_late = transitions.is_written(ctx, plan.state, victim.id)
        if is_late and ctx.config.behaviour.spares_in_flight:
            break
        plan = transitions.preempt(ctx, plan, victim)
        if victim.id == sequence.id:
            break
    return plan


def choose_victim(ctx: Context, state: State) -> Sequence:
    """The last of the running queue; by priority, the worst one."""
    if ctx.config.scheduling is Scheduling.FCFS:
        return state.running[-1]
    return max(state.running, key=lambda row: transitions.rank(ctx, row))


# --- waiting --------------------------------------------------------------------------------------


def _waiting_unless_preempted(ctx: Context, plan: Plan) -> Plan:
    """After any preemption no waiting request is looked at in this step."""
    if plan.preempted:
        return evolve(plan, refusal="V1-PRE-4")
    return schedule_waiting(ctx, plan)


def schedule_waiting(ctx: Context, plan: Plan) -> Plan:
    """Requests are admitted from the heads of the queues until one is refused.

    A request that loads is passed over and stays in front of the queue; so is one that is held back
    for its grammar, its client, the connector's answer, or what is in flight for it since it was
    preempted; in 0.33.0 at its place in the queue. Sessions between two turns keep their places.
    """
    held_back = plan.state.held_back
    while plan.refusal is None and (row := next_in_queue(ctx, plan.state)) is not None:
        if plan.budget == 0:
            plan = evolve(plan, refusal="V1-BUD-1")
        elif len(plan.state.running) >= ctx.config.max_num_seqs:
            plan = evolve(plan, refusal="V1-SEQ-1")
        elif len(plan.state.running) + len(plan.state.awaited) >= ctx.config.max_num_seqs:
            plan = evolve(plan, refusal="V1-SES-3")
        elif row.load is Load.LOADING or row.id in held_back:
            plan = transitions.pass_over(ctx, plan, row)
        else:
            plan = _consider(ctx, plan, row)
    in_front = tuple(row for row in plan.looked_at if _stays_in_front(ctx, held_back, row))
    others = tuple(row for row in plan.looked_at if row not in in_front)
    state = evolve(
        plan.state,
        skipped=transitions.queued(ctx, (*in_front, *plan.state.skipped)),
        waiting=transitions.queued(ctx, (*others, *plan.state.waiting)),
    )
    return evolve(plan, state=state)


def _stays_in_front(ctx: Context, held_back: Container[str], row: Sequence) -> bool:
    """True if a request that was passed over is looked at before those that wait.

    It loads, or it is held back and, from 0.33.0 on, has something computed: a turn of a session.
    """
    has_turn = row.computed > 0 or not ctx.config.behaviour.holders_first
    return row.load is Load.LOADING or (row.id in held_back and has_turn)


def next_in_queue(ctx: Context, state: State) -> Sequence | None:
    """The request that is looked at next: those passed over before go first.

    By priority, up to 0.28.0, the more urgent of the two heads.
    """
    heads = [queue[0] for queue in (state.skipped, state.waiting) if queue]
    config = ctx.config
    if config.scheduling is Scheduling.PRIORITY and not config.behaviour.holders_first:
        heads.sort(key=lambda row: transitions.rank(ctx, row))
    return heads[0] if heads else None


def _consider(ctx: Context, plan: Plan, row: Sequence) -> Plan:
    """Admit the request, begin its load, pass it over, or end the walk."""
    if row.load is not Load.NONE:
        plan, row = transitions.promote(ctx, plan, row)
    demand = _found(ctx, plan.state, row)
    if demand.is_load:
        refusal = _without_blocks(ctx, plan, row, demand)
        if refusal is not None:
            return evolve(plan, refusal=refusal)
        return transitions.load(ctx, plan, row, demand)
    computed = computed_with(ctx, row, demand)
    threshold = plan.threshold
    padding = _padding(ctx, plan, computed, row.tokens - computed)
    wanted = row.tokens - computed + padding
    if padding and (wanted > plan.budget or computed + wanted > ctx.config.max_model_len):
        return evolve(plan, refusal="V1-SPC-5")
    new = int(waiting_tokens(row.tokens + padding, computed, threshold, plan.budget))
    uncut = int(waiting_tokens(row.tokens + padding, computed, threshold, wanted))
    if not ctx.config.chunked_prefill and new < uncut:
        return _not_to_be_cut(ctx, plan, row)
    chunk = groups.chunk(ctx, row, computed, new, row.junction or demand.junction)
    if chunk == 0 < new:
        return evolve(plan, refusal="V1-GRP-14")
    plan, encodings = transitions.look_for_encodings(ctx, plan, row, computed, chunk)
    if encodings.tokens == 0 < chunk:
        return _not_encoded(ctx, plan, row)
    new = encodings.tokens
    demand = evolve(demand, new=new)
    refusal = _without_blocks(ctx, plan, row, demand)
    if refusal is not None:
        state = encoder_cache.given_back(ctx, plan.state, row.id)
        return evolve(plan, state=state, refusal=refusal)
    plan = transitions.admit(ctx, plan, row, demand, max(computed + new - row.tokens, 0))
    return transitions.encode(ctx, plan, row, encodings)


def _without_blocks(ctx: Context, plan: Plan, row: Sequence, demand: Demand) -> str | None:
    """The rule that refuses a request its blocks, if any does."""
    if groups.reads_fresh_state(ctx, plan.state.pool, demand.further_hits, plan.states):
        return "V1-GRP-15"
    return None if _fits(ctx, plan, row, demand) else "V1-KV-1"


def _fits(ctx: Context, plan: Plan, row: Sequence, demand: Demand) -> bool:
    """True if the request finds its slots beside the prompts in progress."""
    return kv_cache.fits_at_admission(ctx, plan.state.pool, row, demand, plan.in_progress)


def _not_to_be_cut(ctx: Context, plan: Plan, row: Sequence) -> Plan:
    """Without chunked prefill a prompt beyond the budget ends the walk, or is stepped over."""
    if ctx.config.behaviour.steps_over_uncut:
        return transitions.pass_over(ctx, plan, row)
    return evolve(plan, refusal="V1-CHK-2")


def _not_encoded(ctx: Context, plan: Plan, row: Sequence) -> Plan:
    """A request whose first token needs an encoding that cannot be had ends the walk.

    From 0.33.0 on it is passed over.
    """
    if ctx.config.behaviour.passes_over_unencoded:
        return transitions.pass_over(ctx, plan, row)
    return evolve(plan, refusal="V1-ENC-8")


def _found(ctx: Context, state: State, row: Sequence) -> Demand:
    """What the request need not compute: cached blocks, then what the connector has beyond."""
    if row.computed > 0:
        return Demand()
    cached = kv_cache.found(ctx, state.pool, row)
    local = len(cached.hits) * ctx.config.block_size
    external = _external(ctx, state, row) - local
    if ctx.config.connector is Connector.NONE or external <= 0:
        return cached
    is_load = ctx.config.connector is Connector.ASYNC
    return evolve(cached, external=external, is_load=is_load)


def _external(ctx: Context, state: State, row: Sequence) -> int:
    """Tokens that the connector has of the request; loaded at once, one is left to compute.

    So it is where the state behind all tokens is of no use to the last one.
    """
    if row.id in state.lost or not is_brought(ctx, row.id):
        return 0
    return min(ctx.external.get(row.id, 0), row.tokens - ctx.config.leaves_one_token)


def _padding(ctx: Context, plan: Plan, computed: int, behind: int) -> int:
    """Drafts that fill up a fresh request with one token to compute, from 0.28.0 on.

    Only where all that were scheduled before it decode, so that all rows are of one length.
    """
    config, behaviour = ctx.config, ctx.config.behaviour
    drafts = config.num_speculative_tokens
    if not behaviour.pads or behind != 1:
        return 0
    earlier = [row for row in plan.state.running if row.id in plan.scheduled]
    running = [row for row in earlier if row.id not in plan.admitted]
    is_alone = not running and not (behaviour.pads_alone and computed > 0)
    if is_alone or any(row.prefilling for row in running):
        return 0
    has_room = computed + 1 + drafts < config.max_model_len
    return drafts if has_room or behaviour.padding_needs_length else 0


# --- results --------------------------------------------------------------------------------------


@define
class _Results(Run[Context, State]):
    """The step while its results are worked in.

    `missing`: blocks that the connector should have filled in this step and did not. `unclaimed`:
    those of them that no request so far computes itself. `outputs`: tokens sampled, by request.
    `accepted`: drafts, by request. `proposed`: drafts, by request, where they are fewer than
    configured. `flight`: the step in flight whose results these are.
    """

    missing: frozenset[int] = frozenset()
    unclaimed: frozenset[int] = frozenset()
    outputs: dict[str, tuple[int, ...]] = field(factory=dict)
    accepted: dict[str, int] = field(factory=dict)
    proposed: dict[str, int] = field(factory=dict)
    flight: Flight | None = None

    def row(self, request_id: str) -> Sequence:
        """The running request of this name."""
        return next(row for row in self.state.running if row.id == request_id)

    def receiver(self, request_id: str) -> Sequence:
        """The request of this name; it may wait when the results of a step in flight come."""
        rows = self.state.running if self.flight is None else self.state.present
        return next(row for row in rows if row.id == request_id)


def _at_once(ctx: Context, plan: Plan, environment: Environment) -> _Results:
    """The results of the step itself: drafts verified, tokens sampled, ends seen."""
    results = _computed(ctx, plan, environment)
    for request_id in plan.scheduled:
        if request_id not in environment.leavers:
            _update(results, plan, request_id, environment)
    return results


def _in_flight(ctx: Context, before: State, plan: Plan, environment: Environment) -> _Results:
    """The step takes off, and the results of the oldest in flight come, if they are waited for.

    Nothing takes off where no request is present, none that left is to be reported and no transfer
    is under way. Results are waited for where too many steps are in flight, or where no request is
    left to plan for.
    """
    results = _Results(ctx, plan.state)
    if before.present or before.unreported or before.draining:
        results.state = transitions.launch(ctx, plan)
    for request_id in environment.leavers:
        results.take(_leave, request_id, plan.scheduled.get(request_id, 0))
    flights = results.state.flights
    has_work = plan.scheduled or plan.state.present or plan.state.draining
    may_wait = len(flights) <= ctx.config.steps_in_flight and has_work
    if flights and not may_wait:
        results.flight = flights[0]
        results.state = transitions.land(ctx, results.state)
        _lose_in_flight(results, flights[0], environment)
        for request_id in results.flight.scheduled:
            if request_id in results.flight.samples:
                if request_id not in results.ids_of("undo"):
                    _receive(results, request_id, environment)
            elif any(row.id == request_id for row in results.state.running):
                results.state = encoder_cache.passed(ctx, results.state, request_id)
    return results


def _lose_in_flight(results: _Results, flight: Flight, environment: Environment) -> None:
    """Loads of a step in flight are lost: who read their blocks, in it or since, goes back.

    A request that was preempted meanwhile has lost everything already.
    """
    ctx, flights = results.ctx, (flight, *results.state.flights)
    given = {
        row.id: sum(each.scheduled.get(row.id, 0) for each in flights)
        for row in results.state.running
    }
    lost = [id_ for id_ in flight.external if id_ in given and environment.loses(id_)]
    for request_id in lost:
        _lose(results, results.row(request_id), flight.external[request_id], given[request_id])
    for row in results.state.running:
        held = row.blocks[: int(cdiv(row.computed - given[row.id], ctx.config.block_size))]
        if given[row.id] and not results.missing.isdisjoint(held):
            _compute_again(results, row, held, row.computed - given[row.id])


def _lose(results: _Results, row: Sequence, external: int, given: int) -> None:
    """What the connector should have brought before a request's `given` tokens is not there."""
    ctx, end = results.ctx, row.computed - given
    came, size = ctx.if_lost.get(row.id, 0), ctx.config.block_size
    valid = int(valid_after_loss(end - external, end, came, size))
    missing = row.blocks[valid // size : int(cdiv(end, size))]
    results.missing = results.unclaimed = results.missing.union(missing)
    results.take(transitions.lose_load, row.id, external)


def _receive(results: _Results, request_id: str, environment: Environment) -> None:
    """A request gets its tokens of a step in flight; of one that has left they are discarded.

    One that was preempted meanwhile gets them, too, and has nothing to roll back.
    """
    flight = results.flight
    if flight is None or all(row.id != request_id for row in results.state.present):
        return
    row = results.receiver(request_id)
    drafts, accepted = flight.drafts.get(row.id, 0), 0
    if drafts:
        accepted = 0 if row.id in flight.padded else environment.accepted(row, drafts)
        results.accepted[row.id] = accepted
        if row in results.state.running:
            results.take(transitions.rollback, row.id, drafts, accepted)
    results.state = encoder_cache.passed(results.ctx, results.state, row.id)
    is_over = _gain(results, row, accepted, environment)
    if any(running.id == row.id for running in results.state.running):
        results.state = transitions.cache_sampled(results.ctx, results.state, row.id)
    if is_over:
        _finish(results, row.id, accepted)


def _gain(results: _Results, row: Sequence, accepted: int, environment: Environment) -> bool:
    """A request gets its accepted drafts and one token more, up to its end; true if it ends."""
    request, tokens, is_over = results.ctx.requests[row.id], list[int](), False
    gain = transitions.sample if results.flight is None else transitions.receive
    while len(tokens) <= accepted and not is_over:
        results.state = gain(results.ctx, results.state, row.id)
        now = results.receiver(row.id)
        tokens.append(request.output_token(now.generated - 1))
        is_over = now.generated >= request.max_tokens or environment.ends(now)
    results.outputs[row.id] = tuple(tokens)
    return is_over


def _finish(results: _Results, request_id: str, accepted: int) -> None:
    """A request ends, maybe before the last of its accepted drafts."""
    beyond = accepted + 1 - len(results.outputs[request_id])
    results.take(transitions.finish, request_id, beyond)


def _computed(ctx: Context, plan: Plan, environment: Environment) -> _Results:
    """All tokens are computed, loads may be lost, clients may have gone in the meantime."""
    results = _Results(ctx, transitions.compute(ctx, plan.state, plan.scheduled))
    lost = [id_ for id_ in plan.scheduled if id_ in plan.external and environment.loses(id_)]
    for request_id in lost:
        external, given = plan.external[request_id], plan.scheduled[request_id]
        _lose(results, results.row(request_id), external, given)
    for request_id in environment.leavers:
        results.take(_leave, request_id, plan.scheduled.get(request_id, 0))
    return results


def _leave(ctx: Context, state: State, request_id: str, new_tokens: int) -> Moved:
    """A client goes away while the model runs."""
    left = transitions.abort(ctx, state, request_id, new_tokens)
    return left, (Event("leave", request_id, "V1-LIF-2"),)


def _update(results: _Results, plan: Plan, request_id: str, environment: Environment) -> None:
    """One request's results: a lost load, its accepted drafts, its new tokens, its end."""
    row = results.row(request_id)
    read = row.computed - plan.scheduled[row.id]  # tokens that were there before the step
    held = row.blocks[: int(cdiv(read, results.ctx.config.block_size))]
    if not results.missing.isdisjoint(held):
        _compute_again(results, row, held, read)
    elif row.computed >= row.tokens:
        _sample(results, plan, row, environment)
    else:  # a chunk that is not the last yields nothing
        results.state = encoder_cache.passed(results.ctx, results.state, row.id)


def _compute_again(results: _Results, row: Sequence, held: tuple[int, ...], read: int) -> None:
    """A request reads what did not come: no output, and this step's tokens once more.

    The first that holds such a block computes it; whichever shares it relies on that.
    """
    claimed = [index for index, block in enumerate(held) if block in results.unclaimed]
    valid = claimed[0] * results.ctx.config.block_size if claimed else read
    results.take(transitions.undo, row.id, valid)
    results.unclaimed = results.unclaimed.difference(held)


def _sample(results: _Results, plan: Plan, row: Sequence, environment: Environment) -> None:
    """Accepted drafts and one token more, up to the request's end."""
    ctx, drafts, accepted = results.ctx, plan.drafts.get(row.id, 0), 0
    if drafts:
        is_padded = row.id in plan.admitted
        accepted = 0 if is_padded else environment.accepted(row, drafts)
        results.take(transitions.rollback, row.id, drafts, accepted)
        results.accepted[row.id] = accepted
    results.state = encoder_cache.passed(ctx, results.state, row.id)
    is_over = _gain(results, row, accepted, environment)
    if ctx.config.num_speculative_tokens and ctx.config.behaviour.caches_accepted:
        results.state = transitions.cache_sampled(ctx, results.state, row.id)
    if is_over:
        _finish(results, row.id, accepted)
    elif ctx.config.num_speculative_tokens:
        _propose(results, results.row(row.id), environment)


def _propose(results: _Results, row: Sequence, environment: Environment) -> None:
    """A request that goes on gets drafts for its next step."""
    most = results.ctx.config.num_speculative_tokens
    drafts = environment.proposes(row, most)
    if drafts < most:
        results.proposed[row.id] = drafts
    results.state = transitions.propose(results.ctx, results.state, row.id, drafts)
