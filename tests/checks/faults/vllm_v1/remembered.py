"""Faults of fields kept from step to step, and of queue orders.

Each changes a field for good: without a rule that defines the field only a comparison notices.
"""

from typing import Any

from attrs import evolve

from reference.core import block_pool
from reference.vllm_v1 import kv_cache, step, transitions, unfilled
from reference.vllm_v1.transitions import Moved, Plan
from spec.vllm_v1.records import Context, Sequence, State
from spec.vllm_v1.releases import Release
from tests.checks.faults.patches import (
    Wrong,
    always,
    backwards,
    changed,
    configured,
    depending,
    each,
    first_to_back,
    kept,
    last_to_front,
    own_row,
    plus,
    result,
)
from tests.checks.faults.vllm_v1.table import DRAINING, EQUALS, NO_TURN, STEPPED_OVER, TWICE, fault

# --- marks of prefilling --------------------------------------------------------------------------

fault(transitions, "compute", on="threshold", rules="V1-PRG-7")(
    result(running=each(prefilling=False)), "no request is marked as prefilling"
)
fault(transitions, "compute", on="threshold", rules="V1-PRG-7")(
    result(running=each(prefilling=True)), "every request is marked as prefilling"
)
fault(transitions, "preempt", on="fcfs", rules="V1-PRG-7")(
    depending(
        lambda _ctx, _plan, row: changed(
            state=changed(waiting=own_row(row.id, prefilling=row.prefilling))
        )
    ),
    "victim keeps its mark of prefilling",
)
fault(transitions, "admit", on="threshold", rules="V1-PRG-7")(
    depending(
        lambda _ctx, _plan, row, *_: changed(
            state=changed(running=own_row(row.id, prefilling=True))
        )
    ),
    "marked as prefilling when admitted",
)
fault(transitions, "undo", on="sync load, lost", rules="V1-PRG-7")(
    depending(
        lambda _ctx, _state, request_id, *_: changed(running=own_row(request_id, prefilling=False))
    ),
    "one that has lost its load is taken for decoding",
)


@fault(transitions, "compute", on=NO_TURN.name, rules="V1-LIF-8, V1-PRG-7")
def without_a_turn_no_mark(
    right: Wrong, ctx: Context, state: State, scheduled: dict[str, int]
) -> State:
    """A request that no budget is left for loses its mark of prefilling."""
    done: State = right(ctx, state, scheduled)
    rows = (row if row.id in scheduled else evolve(row, prefilling=False) for row in done.running)
    return evolve(done, running=tuple(rows))


# --- numbers of a request -------------------------------------------------------------------------

fault(transitions, "arrive", on="priority", rules="V1-LIF-3")(
    depending(
        lambda _ctx, state, request_id: changed(
            waiting=own_row(request_id, arrival=len(state.present))
        )
    ),
    "arrivals are numbered by those that are present",
)
fault(transitions, "preempt", on="priority", rules="V1-LIF-9")(
    depending(
        lambda _ctx, _plan, row: changed(
            state=changed(waiting=own_row(row.id, arrival=row.arrival + 9))
        )
    ),
    "victim comes back with a new number",
)
fault(transitions, "preempt", on="fcfs", rules="V1-LIF-9, V1-PRE-3, V1-PRG-8")(
    depending(
        lambda _ctx, _plan, row: changed(
            state=changed(waiting=own_row(row.id, prompt_len=row.tokens, generated=0))
        )
    ),
    "victim's answer is its prompt from now on",
)
fault(transitions, "preempt", on="speculation", rules="V1-PRE-3, V1-SPC-6")(
    depending(
        lambda _ctx, _plan, row: changed(state=changed(waiting=own_row(row.id, drafts=row.drafts)))
    ),
    "victim keeps its drafts",
)
fault(transitions, "propose", on="speculation", rules="V1-SPC-6")(
    depending(lambda _ctx, _state, request_id, _: changed(running=own_row(request_id, drafts=1))),
    "one draft is remembered, whatever is proposed",
)
fault(transitions, "propose", on="speculation, fewer drafts", rules="V1-SPC-6")(
    depending(lambda _ctx, _state, request_id, _: changed(running=own_row(request_id, drafts=2))),
    "where fewer drafts are proposed others take their place",
)
fault(transitions, "compute", on="speculation, no padding", rules="V1-SPC-6")(
    result(running=each(drafts=plus(1))), "a draft more is remembered"
)
fault(
    transitions,
    "admit",
    on="shared prefix",
    rules="V1-KV-10, V1-KV-11, V1-KV-12, V1-KV-15, V1-KV-16, V1-KV-8",
)(
    depending(
        lambda _ctx, _plan, row, *_: changed(
            state=changed(running=own_row(row.id, blocks=backwards))
        )
    ),
    "newcomer's table backwards",
)
fault(transitions, "catch_up", on="fcfs", rules="V1-KV-13, V1-PRG-6")(
    depending(
        lambda _ctx, _plan, row, _new: changed(
            state=changed(running=own_row(row.id, computed=max(row.computed - 1, 0)))
        )
    ),
    "one computed token is forgotten",
)

# --- loads ----------------------------------------------------------------------------------------


@fault(transitions, "promote", on="async load", rules="V1-EXT-9")
def stays_marked_as_loaded(right: Wrong, ctx: Context, plan: Plan, row: Sequence) -> Any:
    """One that is taken for loaded stays marked."""
    done, ready = right(ctx, plan, row)
    ready = evolve(ready, load=row.load)
    skipped = transitions.replaced(done.state.skipped, ready)
    return evolve(done, state=evolve(done.state, skipped=skipped)), ready


fault(transitions, "end_load", on="async load", rules="V1-LIF-3")(
    kept("lost"), "a load that failed is offered again"
)
fault(transitions, "lose_load", on="sync load, lost", rules="V1-EXT-10, V1-KV-20")(
    kept("lost"), "a load that was lost in a step is offered again"
)
AGAIN = "V1-EXT-10, V1-EXT-4, V1-KV-20"
fault(step, "_compute_again", of="undo", on="sync load, lost", rules=AGAIN)(
    lambda right, results, row, held, read: right(results, row, held[:0], read),
    "no reader goes back for a lost load",
)


@fault(transitions, "abort", on=DRAINING.name, rules="V1-LIF-3")
def drains_in_front(right: Wrong, ctx: Context, state: State, request_id: str) -> State:
    """One that is aborted while it loads drains before the others."""
    done: State = right(ctx, state, request_id)
    if len(done.draining) == len(state.draining):
        return done
    return evolve(done, draining=last_to_front(done.draining))


@fault(transitions, "compute", on=DRAINING.name, rules="V1-EXT-11, V1-KV-8, V1-LIF-8")
def drains_no_longer(right: Wrong, ctx: Context, state: State, scheduled: dict[str, int]) -> State:
    """A step ends the loads of those that were aborted."""
    done: State = right(ctx, state, scheduled)
    for row in done.draining:
        done = evolve(done, pool=kv_cache.free(ctx, done.pool, row.blocks))
    return evolve(done, draining=())


# --- who has left ---------------------------------------------------------------------------------

fault(transitions, "finish", on="uncut", rules="V1-LIF-2, V1-LIF-4")(
    depending(lambda _ctx, _state, request_id, _beyond: changed(finished=frozenset({request_id}))),
    "those that finished earlier are forgotten",
)
fault(transitions, "abort", on="fcfs", rules="V1-LIF-3, V1-LIF-6")(
    depending(lambda _ctx, _state, request_id, *_: changed(unreported=frozenset({request_id}))),
    "those that left earlier are not reported",
)

# --- contents of the cache ------------------------------------------------------------------------

fault(block_pool, "register", of="cache_blocks", on=TWICE.name, rules="V1-KV-17")(
    result(
        cached=lambda cached: type(cached)((key, blocks[::-1]) for key, blocks in cached.items())
    ),
    "the newest of equal blocks is found",
)
fault(block_pool, "lookup", of="prefix_hits", on=TWICE.name, rules="V1-KV-17")(
    lambda _right, pool, keys: tuple(pool.cached[key][-1] for key in keys if key in pool.cached),
    "the last of equal blocks is taken",
)


@fault(transitions, "abort", on="shared prefix", rules="V1-LIF-3")
def contents_leave_with_their_client(
    right: Wrong, ctx: Context, state: State, request_id: str
) -> State:
    """What an aborted request has cached cannot be found any more."""
    row = next(row for row in state.present if row.id == request_id)
    done: State = right(ctx, state, request_id)
    free = [block for block in row.blocks if block in done.pool.keys]
    free = [block for block in free if block not in done.pool.references]
    return evolve(done, pool=block_pool.evict(done.pool, free))


@fault(transitions, "finish", on="shared prefix", rules="V1-KV-17")
def contents_leave_with_the_answer(
    right: Wrong, ctx: Context, state: State, request_id: str, *beyond: int
) -> Moved:
    """What a request that finishes has cached cannot be found any more."""
    row = next(row for row in state.running if row.id == request_id)
    done, events = right(ctx, state, request_id, *beyond)
    free = [block for block in row.blocks if block in done.pool.keys]
    free = [block for block in free if block not in done.pool.references]
    return evolve(done, pool=block_pool.evict(done.pool, free)), events


# --- orders ---------------------------------------------------------------------------------------

fault(transitions, "compute", on="fcfs", rules="V1-ORD-4")(
    result(running=backwards), "running queue backwards after each step"
)
fault(transitions, "finish", on="uncut", rules="V1-ORD-4")(
    result(running=first_to_back), "the first goes behind the others when one finishes"
)
fault(transitions, "sample", on="threshold", rules="V1-ORD-4")(
    result(running=last_to_front), "the last goes to the front when one samples"
)
fault(transitions, "abort", on="threshold", rules="V1-LIF-3")(
    result(waiting=first_to_back), "the first that waits goes behind the others on an abort"
)
fault(transitions, "abort", on="threshold", rules="V1-LIF-3")(
    result(running=backwards), "running queue backwards after an abort"
)
fault(transitions, "queued", of="arrive", on="priority", rules="V1-LIF-3")(
    lambda _right, _ctx, queue: queue, "priorities are not looked at in the queue"
)
fault(transitions, "rank", of="preempt", on=EQUALS.name, rules="V1-LIF-3")(
    lambda right, ctx, row: (right(ctx, row)[0], -row.arrival), "the later of equals goes first"
)
fault(transitions, "rank", of="preempt", on="priority", rules="V1-LIF-3")(
    lambda right, ctx, row: (-right(ctx, row)[0], row.arrival), "the least urgent goes first"
)


@fault(step, "schedule_waiting", of="load", on="async load", rules="V1-ORD-5")
def loads_stand_backwards(right: Wrong, ctx: Context, plan: Plan) -> Plan:
    """Requests that load stand in the reverse order."""
    return changed(state=changed(skipped=backwards))(right(ctx, plan))  # type: ignore[no-any-return]


@fault(step, "next_in_queue", of="admit", on="async load", rules="V1-ORD-5")
def waiting_before_loaded(right: Wrong, ctx: Context, state: State) -> Sequence | None:
    """Those that wait are looked at before those that have loaded."""
    return state.waiting[0] if state.waiting else right(ctx, state)


@fault(step, "_not_to_be_cut", of="pass_over", on="uncut, 0.11.2", rules="V1-PRG-3")
def ends_the_walk(_right: Wrong, _ctx: Context, plan: Plan, _one: Sequence) -> Plan:
    """0.11.2 stops at a prompt that must not be cut, as 0.28.0 does."""
    return evolve(plan, refusal="V1-CHK-2")


@fault(step, "_consider", of="pass_over", on="uncut, 0.11.2", rules="V1-ORD-6, V1-PRG-3")
def steps_over_long_prompts(right: Wrong, ctx: Context, plan: Plan, row: Sequence) -> Plan:
    """A prompt of more than four tokens is stepped over while another one waits."""
    if row.tokens > 4 and len(plan.state.waiting) > 1:
        return transitions.pass_over(ctx, plan, row)
    return right(ctx, plan, row)  # type: ignore[no-any-return]


@fault(transitions, "abort", on="threshold", rules="V1-LIF-3")
def aborted_table_from_its_head(right: Wrong, ctx: Context, state: State, request_id: str) -> State:
    """An aborted request's table is given back from its head on."""
    turned = (
        own_row(request_id, blocks=backwards)(queue) for queue in (state.running, state.skipped)
    )
    running, skipped = turned
    return right(ctx, evolve(state, running=running, skipped=skipped), request_id)  # type: ignore[no-any-return]


fault(transitions, "abort", on="threshold", rules="V1-LIF-3")(
    configured(release=Release.V0_11_2), "an aborted request's plain blocks go behind"
)
fault(block_pool, "new_pool", on="fcfs", rules="V1-KV-18")(
    result(free=backwards), "the highest number is handed out first"
)


@fault(step, "choose_victim", of="preempt", on=EQUALS.name, rules="V1-PRE-2")
def the_earlier_of_equals_gives_way(_right: Wrong, ctx: Context, state: State) -> Sequence:
    """Of the least urgent that which came first is preempted."""
    return max(state.running, key=lambda row: (ctx.requests[row.id].priority, -row.arrival))


fault(transitions, "preempt", on="fcfs, two victims", rules="V1-PRE-3")(
    depending(
        lambda _ctx, plan, row: changed(
            state=changed(waiting=lambda rows: (*rows[1:2], rows[0], *rows[2:]))
        )
    ),
    "a victim waits behind the first that waits",
)
fault(transitions, "pass_over", on=STEPPED_OVER.name, rules="V1-ORD-3")(
    result(looked_at=backwards), "those that are stepped over come back in reverse order"
)

# --- unfilled blocks ------------------------------------------------------------------------------

fault(unfilled, "still", of="lose_load", on="sync load, lost", rules="V1-KV-20")(
    always(()), "blocks of a lost load count as filled"
)
fault(unfilled, "when_computed", of="compute", on="sync load, lost", rules="V1-KV-20")(
    lambda _right, _ctx, blocks, _rows: blocks, "computing fills no block"
)
fault(unfilled, "when_decided", of="preempt", on="priority, hashed ahead", rules="V1-KV-20")(
    lambda _right, _ctx, before, _plan: dict(before.unfilled),
    "blocks that a victim was to fill count as filled",
)
fault(transitions, "abort", on="sync load, lost", rules="V1-KV-21")(
    result(unfilled=()), "an abort fills blocks"
)
