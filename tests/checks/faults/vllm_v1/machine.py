"""Faults of the machine: transitions, decisions of a step, and the KV cache."""

from typing import Any

from attrs import evolve

from reference.core import block_pool
from reference.vllm_v1 import kv_cache, step, transitions
from reference.vllm_v1.kv_cache import Demand
from reference.vllm_v1.transitions import Moved, Plan
from spec.core.blocks import BlockPool
from spec.vllm_v1.config import VllmV1Config
from spec.vllm_v1.records import Context, Load, Sequence, State
from spec.vllm_v1.releases import Release
from tests.checks.faults.patches import (
    Wrong,
    always,
    backwards,
    changed,
    configured,
    depending,
    first_to_back,
    kept,
    last_to_front,
    own_row,
    plus,
    result,
)
from tests.checks.faults.vllm_v1.table import DRAINING, fault

# --- between two steps ----------------------------------------------------------------------

fault(transitions, "arrive", on="fcfs", rules="V1-LIF-3")(
    result(waiting=last_to_front), "newcomer in front"
)
fault(transitions, "abort", on="fcfs", rules="V1-LIF-3, V1-LIF-5, V1-LIF-6")(
    kept("unreported"), "abort not reported"
)
fault(transitions, "abort", on="fcfs", rules="V1-KV-2, V1-KV-8")(
    kept("pool"), "aborted keeps its blocks"
)


@fault(transitions, "abort", on=DRAINING.name, rules="V1-EXT-6, V1-LIF-3")
def aborted_load_gives_its_blocks_back(
    right: Wrong, ctx: Context, state: State, request_id: str
) -> State:
    ready = tuple(evolve(row, load=Load.NONE) for row in state.skipped)
    aborted: State = right(ctx, evolve(state, skipped=ready), request_id)
    kept = tuple(row for row in state.skipped if row.id != request_id)
    return evolve(aborted, skipped=kept)


_NO_TURN = "V1-KV-2, V1-LIF-2, V1-ORD-4, V1-SES-1, V1-SES-2"
_PASSED, _BACK = "V1-EXT-13, V1-ORD-2", "V1-ORD-3, V1-ORD-5"
fault(transitions, "arrive", on="async load, answered late", rules="V1-LIF-3")(
    result(unanswered=lambda asked: asked | {"another"}), "asked about another request"
)
fault(transitions, "answer", on="sync load, answered late", rules="V1-LIF-3")(
    result(unanswered=lambda asked: asked | {"another"}), "asked about another request again"
)
fault(step, "schedule_waiting", of="pass_over", on="sync load, answered late", rules=_PASSED)(
    lambda right, ctx, plan: right(ctx, changed(state=changed(unanswered=frozenset()))(plan)),
    "goes on without an answer",
)
fault(step, "_stays_in_front", of="pass_over", on="async load, answered late", rules=_BACK)(
    lambda right, ctx, _held_back, row: right(ctx, (), row),
    "passed over and back in its place",
)
fault(transitions, "arrive", on="grammar", rules="V1-LIF-3")(
    configured(release=Release.V0_33_0), "waits for its grammar behind the others"
)
fault(transitions, "compiled", on="grammar", rules="V1-LIF-3")(
    result(compiling=lambda left: left | {"another"}), "another grammar is to be compiled"
)
fault(step, "schedule_waiting", of="pass_over", on="grammar", rules="V1-ORD-2, V1-STR-1")(
    lambda right, ctx, plan: right(ctx, changed(state=changed(compiling=frozenset()))(plan)),
    "goes on without its grammar",
)
fault(step, "_stays_in_front", of="pass_over", on="grammar", rules="V1-ORD-3")(
    lambda right, ctx, _held_back, row: right(ctx, (), row),
    "without its grammar, and back in its place",
)
fault(step, "masked", of="catch_up", on="grammar", rules="V1-STR-2")(
    lambda right, ctx, plan: right(ctx, plan)[1:], "the first grammar is not asked"
)
fault(step, "masked", of="catch_up", on="grammar", rules="V1-STR-2")(
    lambda _right, ctx, plan: tuple(id_ for id_ in plan.scheduled if ctx.requests[id_].grammar),
    "the grammar of a cut prompt is asked",
)
fault(transitions, "arrive", on="sessions", rules="V1-LIF-3")(
    result(skipped=first_to_back), "a turn arrives behind others that are kept"
)
fault(
    transitions, "_begin_turn", of="arrive", on="sessions, preempted", rules="V1-LIF-3, V1-PRG-1"
)(
    lambda _right, _ctx, state, id_: evolve(state, awaited=state.awaited - {id_}),
    "a turn arrives without its tokens",
)
fault(transitions, "abort", on="sessions, preempted", rules="V1-LIF-3")(
    kept("awaited"), "a session that has left is still awaited"
)
fault(
    transitions,
    "_kept_for",
    of="finish",
    on="sessions, preempted",
    rules="V1-KV-2, V1-KV-7, V1-SES-1",
)(
    lambda right, ctx, state, row, turn: right(ctx, state, evolve(row, blocks=()), turn),
    "the next turn lacks the blocks of the one before",
)
fault(transitions, "_kept_for", of="finish", on="sessions, preempted", rules="V1-KV-11, V1-SES-1")(
    lambda right, ctx, state, row, turn: right(
        ctx, state, evolve(row, computed=row.computed - 1), turn
    ),
    "the next turn lacks a token",
)
fault(transitions, "_kept_for", of="finish", on="sessions, preempted", rules=_NO_TURN)(
    result(skipped=lambda rows: rows[:-1]), "a session ends with its first turn"
)
fault(
    step, "schedule_waiting", of="pass_over", on="sessions, preempted", rules="V1-PRG-1, V1-SES-2"
)(
    lambda right, ctx, plan: changed(state=changed(awaited=frozenset()))(right(ctx, plan)),
    "a step takes a turn for sent",
)
fault(transitions, "_kept_for", of="finish", on="sessions, preempted", rules="V1-SES-4")(
    kept("early"), "a turn that was sent early is still expected"
)
fault(transitions, "_kept_for", of="finish", on="sessions, preempted", rules="V1-ORD-4")(
    configured(release=Release.V0_33_0), "a turn that was sent early overtakes those that wait"
)
fault(transitions, "arrive", on="sessions, preempted", rules="V1-LIF-3")(
    result(early=lambda early: early | {"2"}), "a turn is taken for sent before the one before it"
)
fault(transitions, "abort", on="sessions, preempted", rules="V1-SES-4")(
    kept("early"), "an early turn stays although its session has left"
)
fault(step, "schedule_waiting", on="sessions", rules="V1-SES-3")(
    configured(max_num_seqs=3), "sessions between two turns keep no places"
)
fault(transitions, "abort", on="async load, sent", rules="V1-EXT-11")(
    configured(sends=False), "aborted is not sent"
)
fault(transitions, "finish", on="async load, sent", rules="V1-EXT-11, V1-EXT-14")(
    configured(sends=False), "finished is not sent"
)
fault(transitions, "finish", on="sync load, sent", rules="V1-EXT-11")(
    configured(release=Release.V0_28_0), "tokens beyond the end are sent"
)


@fault(transitions, "end_send", on="async load, sent", rules="V1-EXT-12, V1-LIF-3")
def sent_and_kept(_right: Wrong, _ctx: Context, state: State, request_id: str) -> State:
    rows = tuple(
        evolve(row, sending=row.sending and row.id != request_id) for row in state.draining
    )
    return evolve(state, draining=rows)


fault(transitions, "valid_after_loss", on="async load, part is lost", rules="V1-EXT-7, V1-LIF-3")(
    lambda _right, start, _end, _came, _size: start, "what came of a lost load, nothing"
)
fault(transitions, "valid_after_loss", on="async load, part is lost", rules="V1-EXT-7, V1-LIF-3")(
    lambda _right, start, end, came, _size: max(start, min(came, end - 1)),
    "what came of a lost load, parts of blocks too",
)
fault(step, "valid_after_loss", on="sync load, part is lost", rules="V1-EXT-10")(
    lambda _right, start, _end, _came, _size: start, "what came within the step, nothing"
)
fault(
    step, "valid_after_loss", on="sync load, part is lost", rules="V1-EXT-10, V1-EXT-4, V1-KV-20"
)(
    lambda _right, _start, end, _came, size: (end - 1) // size * size,
    "what came within the step, all but the last block",
)


@fault(transitions, "end_load", on="async load", rules="V1-EXT-7, V1-LIF-3")
def failed_load_counts(
    right: Wrong, ctx: Context, state: State, request_id: str, failed: bool = False
) -> State:
    ended: State = right(ctx, state, request_id)
    return evolve(ended, lost=ended.lost | {request_id}) if failed else ended


# --- running --------------------------------------------------------------------------------

fault(transitions, "catch_up", on="fcfs", rules="V1-BUD-2")(
    kept("budget"), "running tokens are free"
)
fault(transitions, "catch_up", on="speculation", rules="V1-BUD-3")(
    lambda right, ctx, plan, row, new: right(ctx, plan, row, max(new - 1, 1)), "a draft too few"
)
fault(step, "running_tokens", of="catch_up", on="threshold", rules="V1-BUD-3, V1-CHK-1")(
    lambda right, *given: right(*given[:3], 0, *given[4:]), "threshold ignored"
)
fault(transitions, "preempt", on="fcfs", rules="V1-PRE-3")(
    result(state=changed(waiting=first_to_back)), "victim at the end of the queue"
)
fault(transitions, "preempt", on="fcfs, two victims", rules="V1-KV-16, V1-KV-2, V1-KV-6, V1-PRE-3")(
    depending(
        lambda _ctx, _plan, row: changed(state=changed(waiting=own_row(row.id, blocks=row.blocks)))
    ),
    "victim keeps its blocks",
)
fault(transitions, "preempt", on="priority", rules="V1-BUD-2")(kept("budget"), "no refund")
fault(transitions, "preempt", on="priority", rules="guard V1-OUT-1")(
    kept("scheduled", "budget"), "victim stays scheduled"
)
fault(transitions, "preempt", on="priority", rules="V1-OUT-1, V1-OUT-2")(
    lambda right, ctx, plan, row: result(external=lambda old: {**old, row.id: 1})(
        right, ctx, plan, row
    ),
    "victim reported as admitted",
)
fault(step, "choose_victim", of="preempt", on="fcfs, two victims", rules="V1-PRE-2")(
    lambda _right, _ctx, state: state.running[0], "first of the queue gives way"
)


@fault(step, "_make_room", of="preempt", on="fcfs, two victims", rules="V1-PRE-5")
def one_victim_too_many(right: Wrong, ctx: Context, plan: Plan, row: Sequence, new: int) -> Plan:
    done: Plan = right(ctx, plan, row, new)
    last = done.state.running[-1]
    if done.preempted == plan.preempted or last.id == row.id:
        return done
    return transitions.preempt(ctx, done, last)


@fault(step, "_make_room", of="preempt", on="fcfs", rules="V1-PRE-1, V1-PRE-5")
def preempts_without_need(right: Wrong, ctx: Context, plan: Plan, row: Sequence, new: int) -> Plan:
    if len(plan.state.running) > 1 and not plan.preempted:
        plan = transitions.preempt(ctx, plan, plan.state.running[-1])
    return plan if row.id in plan.preempted else right(ctx, plan, row, new)


# --- waiting --------------------------------------------------------------------------------

fault(step, "_waiting_unless_preempted", of="admit", on="speculation", rules="guard V1-PRE-4")(
    lambda _right, ctx, plan: step.schedule_waiting(ctx, plan), "admits after preemption"
)
fault(step, "schedule_waiting", of="admit", on="uncut", rules="V1-PRG-3, V1-PRG-4")(
    lambda _right, _ctx, plan: plan, "none is admitted"
)
fault(step, "next_in_queue", of="admit", on="uncut", rules="V1-ORD-2")(
    lambda _right, _ctx, state: state.waiting[-1] if state.waiting else None,
    "last of the queue goes first",
)
fault(transitions, "admit", on="uncut", rules="V1-ORD-1")(
    result(state=changed(running=last_to_front)), "admitted in front"
)
fault(transitions, "admit", on="shared prefix", rules="V1-BUD-2")(
    depending(
        lambda _ctx, _plan, _row, demand, *_: changed(
            budget=lambda left: left - min(len(demand.hits), left)
        )
    ),
    "cached tokens count",
)
fault(step, "waiting_tokens", of="admit", on="uncut", rules="V1-CHK-2, V1-BUD-5")(
    lambda right, *given: max(right(*given) - 1, 1), "a token less"
)
fault(step, "_fits", of="admit", on="fcfs", rules="guard V1-KV-1")(
    always(True), "admits without blocks"
)
fault(step, "_padding", of="admit", on="speculation, padding", rules="V1-SPC-5")(
    lambda right, *given: min(right(*given), 1), "half the padding"
)
fault(transitions, "pass_over", on="uncut, 0.11.2", rules="V1-LIF-2, V1-LIF-8, V1-ORD-3")(
    kept("looked_at"), "passed over is lost"
)


@fault(transitions, "promote", on="async load", rules="V1-EXT-3, V1-KV-17")
def loaded_blocks_not_cached(right: Wrong, ctx: Context, plan: Plan, row: Sequence) -> Any:
    done, ready = right(ctx, plan, row)
    if not row.computed:
        return done, ready
    return evolve(done, state=evolve(done.state, pool=plan.state.pool)), ready


@fault(transitions, "load", on="async load", rules="V1-EXT-2, V1-KV-15, V1-KV-17")
def loading_blocks_are_cached(
    right: Wrong, ctx: Context, plan: Plan, row: Sequence, demand: Demand
) -> Plan:
    done: Plan = right(ctx, plan, row, demand)
    loading = done.looked_at[-1]
    pool = kv_cache.cache_blocks(ctx, done.state.pool, loading, loading.computed)
    return evolve(done, state=evolve(done.state, pool=pool))


@fault(transitions, "load", on="async load", rules="V1-EXT-2, V1-KV-15, V1-KV-17")
def loading_blocks_but_the_last_are_cached(
    right: Wrong, ctx: Context, plan: Plan, row: Sequence, demand: Demand
) -> Plan:
    done: Plan = right(ctx, plan, row, demand)
    loading, size = done.looked_at[-1], ctx.config.block_size
    pool = kv_cache.cache_blocks(ctx, done.state.pool, loading, max(loading.computed - size, 0))
    return evolve(done, state=evolve(done.state, pool=pool))


fault(step, "_external", of="load", on="async load", rules="V1-EXT-8")(
    always(0), "what is offered is not taken"
)
fault(step, "_external", of="admit", on="sync load", rules="V1-EXT-8")(
    lambda right, *given: max(right(*given) - 1, 0), "a token of what is offered is left"
)


@fault(transitions, "promote", on="async load", rules="V1-EXT-3, V1-KV-16, V1-KV-17, V1-KV-8")
def keeps_its_blocks_though_nothing_came(
    right: Wrong, ctx: Context, plan: Plan, row: Sequence
) -> Any:
    done, ready = right(ctx, plan, row)
    if row.computed:
        return done, ready
    ready = evolve(ready, blocks=row.blocks)
    skipped = transitions.replaced(done.state.skipped, ready)
    return evolve(done, state=evolve(done.state, pool=plan.state.pool, skipped=skipped)), ready


fault(kv_cache, "blocks_spoken_for", of="load", on="async load", rules="V1-EXT-5")(
    always(0), "loads take what prompts need"
)


# --- what comes of it -----------------------------------------------------------------------

fault(transitions, "compute", on="uncut", rules="V1-PRG-2, V1-SPC-2")(
    lambda _right, _ctx, state, _scheduled: state, "nothing is computed"
)


@fault(transitions, "lose_load", on="sync load, lost", rules="V1-KV-2, V1-KV-8")
def blocks_of_a_lost_load_are_given_back(
    right: Wrong, ctx: Context, state: State, request_id: str, external: int
) -> Moved:
    row = next(row for row in state.running if row.id == request_id)
    done, events = right(ctx, state, request_id, external)
    return evolve(done, pool=kv_cache.free(ctx, done.pool, row.blocks)), events


fault(
    transitions,
    "undo",
    on="sync load, lost",
    rules="V1-EXT-10, V1-EXT-4, V1-KV-20, V1-PRG-1, V1-PRG-7",
)(
    lambda right, ctx, state, *given: (state, right(ctx, state, *given)[1]),
    "lost tokens stay computed",
)
fault(transitions, "rollback", on="speculation", rules="V1-SPC-2, V1-SPC-3, V1-PRG-1")(
    lambda right, ctx, state, *given: (state, right(ctx, state, *given)[1]), "rejected drafts stay"
)
fault(transitions, "rollback", on="speculation", rules="guard V1-PRG-2")(
    lambda right, *given: (right(*given[:-1], 0)[0], right(*given)[1]), "all drafts are rolled back"
)
fault(transitions, "sample", on="uncut", rules="V1-LIF-4, V1-PRG-8, V1-SPC-4")(
    depending(
        lambda _ctx, _state, request_id: changed(running=own_row(request_id, generated=plus(1)))
    ),
    "two tokens at once",
)
fault(step, "_sample", of="finish", on="fcfs", rules="V1-LIF-4")(
    lambda right, results, plan, row, environment: right(
        results, plan, row, evolve(environment, ends=lambda _row: False)
    ),
    "the end of sequence is ignored",
)
fault(transitions, "finish", on="uncut", rules="V1-LIF-5")(kept("unreported"), "end not reported")
fault(transitions, "finish", on="uncut", rules="V1-KV-2, V1-KV-8")(
    kept("pool"), "finished keeps its blocks"
)
fault(transitions, "finish", on="uncut", rules="V1-KV-8, V1-LIF-1, V1-LIF-4, V1-ORD-4")(
    kept("running", "pool"), "finished and still running"
)
fault(step, "statistics", on="uncut", rules="V1-STA-1")(
    result(usage=lambda usage: 1 - usage), "usage counts free blocks"
)
fault(transitions, "_asked", of="admit", on="uncut", rules="V1-STA-2")(
    result(found=lambda tokens: tokens + 1), "a token too many found"
)
fault(transitions, "_with_lookups", of="admit", on="priority, hashed ahead", rules="V1-STA-2")(
    lambda right, ctx, plan, row, demand: right(
        ctx, changed(state=changed(preempted=frozenset()))(plan), row, demand
    ),
    "a resumed request counted with the others",
)
fault(transitions, "preempt", on="fcfs", rules="V1-PRE-7")(
    result(state=changed(preempted=frozenset())), "not known as preempted"
)
fault(transitions, "_asked", of="admit", on="async load", rules="V1-STA-2")(
    lambda right, ctx, so_far, row, demand: right(ctx, so_far, evolve(row, computed=0), demand),
    "what has loaded asks again",
)


# --- the KV cache ---------------------------------------------------------------------------


def _reading(ctx: Context) -> Context:
    """The context in which every request reads the cache."""
    requests = {id_: evolve(row, reads_cache=True) for id_, row in ctx.requests.items()}
    return evolve(ctx, requests=requests)


fault(kv_cache, "prefix_hits", of="admit", on="cache not read, 0.33.0", rules="V1-KV-22")(
    lambda right, ctx, pool, row: right(_reading(ctx), pool, row), "takes hits although it must not"
)
fault(kv_cache, "missing_blocks", of="allocate_slots", on="uncut", rules="V1-KV-13, V1-KV-7")(
    lambda right, *given: right(*given) + 1, "a block too many"
)
fault(kv_cache, "fits", on="fcfs", rules="guard BLK-1")(always(True), "blocks are never lacking")


@fault(
    kv_cache,
    "cache_blocks",
    on="speculation, padding",
    rules="V1-KV-10, V1-KV-11, V1-KV-12, V1-KV-17, V1-KV-8",
)
def drafts_are_cached(
    right: Wrong, ctx: Context, pool: BlockPool, row: Sequence, tokens: int
) -> BlockPool:
    room = len(row.blocks) * ctx.config.block_size
    has_drafts = row.generated > 0 and tokens == row.tokens
    cached: BlockPool = right(ctx, pool, row, room if has_drafts else tokens)
    return cached


fault(
    kv_cache, "cache_blocks", on="eviction, 0.11.2", rules="V1-KV-10, V1-KV-12, V1-KV-15, V1-KV-17"
)(
    lambda right, ctx, pool, row, _tokens: right(
        ctx, pool, row, min(row.tokens, len(row.blocks) * ctx.config.block_size)
    ),
    "half computed blocks are cached",
)
fault(step, "schedule_waiting", of="admit", on="threshold", rules="V1-SEQ-1")(
    configured(max_num_seqs=3), "slots ignored"
)
fault(kv_cache, "free", on="uncut", rules="V1-KV-8")(
    lambda right, ctx, pool, blocks: right(ctx, pool, backwards(blocks)),
    "table freed from its head",
)
fault(
    block_pool,
    "evict",
    of="allocate_slots",
    on="eviction, 0.11.2",
    rules="V1-KV-11, V1-KV-15, V1-KV-17",
)(lambda _right, pool, _blocks: pool, "blocks keep their old content")
fault(kv_cache, "prefix_hits", on="shared prefix", rules="V1-KV-4")(
    lambda right, *given: right(*given)[:-1], "one hit less"
)


@fault(step, "_found", of="prefix_hits", on="shared prefix", rules="V1-KV-5, V1-KV-9")
def last_token_of_a_cached_prompt_only(
    right: Wrong, ctx: Context, state: State, row: Sequence
) -> Demand:
    whole = ctx.keys.of(row.id, row.tokens // ctx.config.block_size)
    found = [state.pool.cached[key][0] for key in whole if key in state.pool.cached]
    if row.tokens % ctx.config.block_size or len(found) < len(whole):
        return right(ctx, state, row)  # type: ignore[no-any-return]
    return Demand(hits=tuple(found), external=-1)


fault(kv_cache, "free", on="uncut", rules="V1-KV-1, V1-KV-8, V1-STA-1")(
    result(free=lambda free: free[:-1]), "a block is lost"
)
fault(kv_cache, "cache_blocks", on="shared prefix", rules="V1-KV-17, V1-KV-3")(
    kept("cached"), "hash is not mapped back"
)
fault(step, "waiting_tokens", of="admit", on="fcfs", rules="guard V1-BUD-1")(
    lambda right, *given: right(*given[:-1], given[-1] + 6), "budget ignored"
)
fault(step, "running_tokens", of="catch_up", on="uncut", rules="V1-BUD-3, V1-BUD-4, V1-PRG-4")(
    always(0), "running requests are left out"
)
fault(transitions, "_scheduled", of="catch_up", on="speculation", rules="V1-PRG-1, V1-SPC-1")(
    lambda right, *given: right(*given[:-1], max(given[-1] - 1, 0)), "a draft is not reported"
)


@fault(step, "_sample", of="sample", on="speculation", rules="V1-LIF-4, V1-PRG-8, V1-SPC-4")
def accepted_drafts_are_not_reported(
    right: Wrong, results: Any, plan: Plan, row: Sequence, *given: Any
) -> None:
    right(results, plan, row, *given)
    results.outputs[row.id] = results.outputs[row.id][:1]


fault(transitions, "pass_over", on="async load", rules="V1-EXT-1, V1-EXT-9, V1-LIF-8, V1-ORD-3")(
    depending(
        lambda _ctx, plan, row: changed(looked_at=(*plan.looked_at, evolve(row, load=Load.LOADED)))
    ),
    "loading is taken for loaded",
)


# --- what 0.33.0 does otherwise -------------------------------------------------------------------

AS_BEFORE = configured(release=Release.V0_28_0)

fault(step, "_external", of="admit", on="cache not read, 0.33.0", rules="V1-EXT-8, V1-KV-22")(
    AS_BEFORE, "is brought tokens although it must not"
)
fault(step, "schedule_running", of="preempt", on="priority, 0.33.0", rules="V1-BUD-4")(
    AS_BEFORE, "behind one that preempts itself none gets a token"
)
fault(VllmV1Config, "threshold_among", of="admit", on="threshold, 0.33.0", rules="V1-BUD-5")(
    lambda _right, config, _requests: config.long_prefill_token_threshold,
    "the threshold cuts the only request",
)
fault(
    VllmV1Config,
    "threshold_among",
    of="admit",
    on="threshold, 0.33.0",
    rules="V1-BUD-5, V1-CHK-1",
)(
    lambda right, config, requests: right(config, max(requests - 1, 1)),
    "the threshold spares the first of two",
)
fault(
    VllmV1Config,
    "most_positions",
    of="catch_up",
    on="pooling, 0.33.0",
    rules="V1-BUD-3, V1-BUD-4, V1-PRG-4",
)(
    lambda _right, config: config.max_model_len - 1,
    "the last position of a pooled prompt is not computed",
)
fault(step, "next_in_queue", of="admit", on="async load, priority, 0.33.0", rules="V1-ORD-2")(
    AS_BEFORE, "the more urgent one that waits goes before what has loaded"
)
fault(step, "_padding", of="admit", on="speculation, padding, 0.33.0", rules="V1-SPC-5")(
    AS_BEFORE, "pads beside others only, and up to the model length"
)
fault(transitions, "cache_sampled", on="speculation, 0.33.0", rules="V1-KV-17, V1-KV-8")(
    lambda _right, _ctx, state, _request_id: state, "accepted drafts are cached a step later"
)
fault(kv_cache, "blocks_spoken_for", of="load", on="async load, drafts, 0.33.0", rules="V1-EXT-5")(
    AS_BEFORE, "loads leave no slots for drafts"
)
fault(Plan, "_is_prompt", of="load", on="async load, drafts, 0.33.0", rules="V1-EXT-5")(
    always(False), "loads leave nothing to running prompts"
)
