"""Planted faults of the vLLM V1 machine: wrong versions, to be switched in one at a time."""

from typing import Any

from attrs import evolve

from checks.policies import POLICIES
from reference.vllm_v1 import kv_cache, step, transitions
from reference.vllm_v1.kv_cache import Demand
from reference.vllm_v1.transitions import Moved, Plan
from spec.core.blocks import BlockPool
from spec.vllm_v1.records import Context, Load, Sequence, State
from tests.checks.faults.planting import FaultTable, Right

FAULTS = FaultTable(POLICIES["vllm-v1"])
fault = FAULTS.fault


# --- between two steps ----------------------------------------------------------------------


@fault(transitions, "arrive", on="fcfs", caught_by="V1-LIF-3")
def newcomer_in_front(right: Right, ctx: Context, state: State, request_id: str) -> State:
    arrived: State = right(ctx, state, request_id)
    return evolve(arrived, waiting=(arrived.waiting[-1], *arrived.waiting[:-1]))


@fault(transitions, "abort", on="fcfs", caught_by="V1-LIF-6, V1-LIF-5")
def abort_not_reported(right: Right, ctx: Context, state: State, request_id: str) -> State:
    aborted: State = right(ctx, state, request_id)
    return evolve(aborted, unreported=state.unreported)


@fault(transitions, "abort", on="fcfs", caught_by="V1-KV-2, V1-KV-8")
def aborted_keeps_its_blocks(right: Right, ctx: Context, state: State, one: str) -> State:
    aborted: State = right(ctx, state, one)
    return evolve(aborted, pool=state.pool)


@fault(transitions, "abort", on="async load", caught_by="V1-EXT-6, V1-EXT-1")
def aborted_load_gives_its_blocks_back(right: Right, ctx: Context, state: State, one: str) -> State:
    ready = tuple(evolve(row, load=Load.NONE) for row in state.skipped)
    aborted: State = right(ctx, evolve(state, skipped=ready), one)
    kept = tuple(row for row in state.skipped if row.id != one)
    return evolve(aborted, skipped=kept)


@fault(transitions, "end_load", on="async load", caught_by="V1-EXT-7")
def failed_load_counts(
    right: Right, ctx: Context, state: State, one: str, failed: bool = False
) -> State:
    ended: State = right(ctx, state, one)
    return evolve(ended, lost=ended.lost | {one}) if failed else ended


# --- running --------------------------------------------------------------------------------


@fault(transitions, "catch_up", on="fcfs", caught_by="V1-BUD-2")
def running_tokens_are_free(right: Right, ctx: Context, plan: Plan, *given: Any) -> Plan:
    done: Plan = right(ctx, plan, *given)
    return evolve(done, budget=plan.budget)


@fault(transitions, "catch_up", on="speculation", caught_by="V1-BUD-3")
def a_draft_too_few(right: Right, ctx: Context, plan: Plan, one: Sequence, new: int) -> Plan:
    done: Plan = right(ctx, plan, one, max(new - 1, 1))
    return done


@fault(step, "running_tokens", of="catch_up", on="threshold", caught_by="V1-BUD-3, V1-CHK-1")
def threshold_ignored(right: Right, *given: int) -> int:
    tokens, drafts, computed, _threshold, budget, length = given
    return int(right(tokens, drafts, computed, 0, budget, length))


@fault(transitions, "preempt", on="fcfs", caught_by="V1-PRE-3")
def victim_at_the_end_of_the_queue(right: Right, ctx: Context, plan: Plan, one: Sequence) -> Plan:
    done: Plan = right(ctx, plan, one)
    first, *others = done.state.waiting
    return evolve(done, state=evolve(done.state, waiting=(*others, first)))


@fault(transitions, "preempt", on="fcfs, two victims", caught_by="V1-KV-2, V1-KV-6, V1-PRE-3")
def victim_keeps_its_blocks(right: Right, ctx: Context, plan: Plan, one: Sequence) -> Plan:
    done: Plan = right(ctx, plan, one)
    rows = tuple(
        evolve(row, blocks=one.blocks) if row.id == one.id else row for row in done.state.waiting
    )
    return evolve(done, state=evolve(done.state, waiting=rows))


@fault(transitions, "preempt", on="priority", caught_by="V1-BUD-2")
def no_refund(right: Right, ctx: Context, plan: Plan, one: Sequence) -> Plan:
    done: Plan = right(ctx, plan, one)
    return evolve(done, budget=plan.budget)


@fault(transitions, "preempt", on="priority", caught_by="guard V1-OUT-1")
def victim_stays_scheduled(right: Right, ctx: Context, plan: Plan, one: Sequence) -> Plan:
    done: Plan = right(ctx, plan, one)
    return evolve(done, scheduled=plan.scheduled, budget=plan.budget)


@fault(transitions, "preempt", on="priority", caught_by="V1-OUT-1, V1-OUT-2")
def victim_is_told_as_admitted(right: Right, ctx: Context, plan: Plan, one: Sequence) -> Plan:
    done: Plan = right(ctx, plan, one)
    return evolve(done, external={**done.external, one.id: 1})


@fault(step, "choose_victim", of="preempt", on="fcfs, two victims", caught_by="V1-PRE-2")
def first_of_the_queue_gives_way(_right: Right, _ctx: Context, state: State) -> Sequence:
    return state.running[0]


@fault(step, "_make_room", of="preempt", on="fcfs, two victims", caught_by="V1-PRE-5")
def one_victim_too_many(right: Right, ctx: Context, plan: Plan, one: Sequence, new: int) -> Plan:
    done: Plan = right(ctx, plan, one, new)
    last = done.state.running[-1]
    if done.preempted == plan.preempted or last.id == one.id:
        return done
    return transitions.preempt(ctx, done, last)


@fault(step, "_make_room", of="preempt", on="fcfs", caught_by="V1-PRE-1, V1-PRE-5")
def preempts_without_need(right: Right, ctx: Context, plan: Plan, one: Sequence, new: int) -> Plan:
    if len(plan.state.running) > 1 and not plan.preempted:
        plan = transitions.preempt(ctx, plan, plan.state.running[-1])
    return plan if one.id in plan.preempted else right(ctx, plan, one, new)


# --- waiting --------------------------------------------------------------------------------


@fault(step, "_waiting_unless_preempted", of="admit", on="speculation", caught_by="guard V1-PRE-4")
def admits_after_preemption(_right: Right, ctx: Context, plan: Plan) -> Plan:
    return step.schedule_waiting(ctx, plan)


@fault(step, "schedule_waiting", of="admit", on="uncut", caught_by="V1-PRG-3, V1-PRG-4")
def nobody_is_admitted(_right: Right, _ctx: Context, plan: Plan) -> Plan:
    return plan


@fault(step, "next_in_queue", of="admit", on="uncut", caught_by="V1-ORD-2")
def last_of_the_queue_goes_first(_right: Right, _ctx: Context, state: State) -> Sequence | None:
    return state.waiting[-1] if state.waiting else None


@fault(transitions, "admit", on="uncut", caught_by="V1-ORD-1")
def admitted_in_front(right: Right, ctx: Context, plan: Plan, *given: Any) -> Plan:
    done: Plan = right(ctx, plan, *given)
    *others, last = done.state.running
    return evolve(done, state=evolve(done.state, running=(last, *others)))


@fault(transitions, "admit", on="shared prefix", caught_by="V1-BUD-2")
def cached_tokens_count(right: Right, ctx: Context, plan: Plan, *given: Any) -> Plan:
    done: Plan = right(ctx, plan, *given)
    demand: Demand = given[1]
    return evolve(done, budget=done.budget - min(len(demand.hits), done.budget))


@fault(step, "waiting_tokens", of="admit", on="uncut", caught_by="V1-CHK-2, V1-BUD-5")
def a_token_less(right: Right, *given: int) -> int:
    return max(int(right(*given)) - 1, 1)


@fault(step, "_fits", of="admit", on="fcfs", caught_by="guard V1-KV-1")
def admits_without_blocks(_right: Right, *_given: Any) -> bool:
    return True


@fault(step, "_padding", of="admit", on="speculation, padding", caught_by="V1-SPC-5")
def half_the_padding(right: Right, *given: Any) -> int:
    return min(int(right(*given)), 1)


@fault(transitions, "pass_over", on="uncut, 0.11.2", caught_by="V1-LIF-2, V1-ORD-3")
def passed_over_is_lost(right: Right, ctx: Context, plan: Plan, one: Sequence) -> Plan:
    done: Plan = right(ctx, plan, one)
    return evolve(done, looked_at=plan.looked_at)


@fault(transitions, "promote", on="async load", caught_by="V1-EXT-3")
def loaded_blocks_not_cached(right: Right, ctx: Context, plan: Plan, one: Sequence) -> Any:
    done, ready = right(ctx, plan, one)
    if not one.computed:
        return done, ready
    return evolve(done, state=evolve(done.state, pool=plan.state.pool)), ready


@fault(transitions, "load", on="async load", caught_by="V1-EXT-2")
def loading_blocks_are_cached(
    right: Right, ctx: Context, plan: Plan, one: Sequence, demand: Demand
) -> Plan:
    done: Plan = right(ctx, plan, one, demand)
    loading = done.looked_at[-1]
    pool = kv_cache.cache_blocks(ctx, done.state.pool, loading, loading.computed)
    return evolve(done, state=evolve(done.state, pool=pool))


@fault(kv_cache, "blocks_spoken_for", of="load", on="async load", caught_by="V1-EXT-5")
def loads_take_what_prompts_need(_right: Right, *_given: Any) -> int:
    return 0


# --- what comes of it -----------------------------------------------------------------------


@fault(transitions, "compute", on="uncut", caught_by="V1-PRG-2, V1-SPC-2")
def nothing_is_computed(_right: Right, _ctx: Context, state: State, _scheduled: Any) -> State:
    return state


@fault(transitions, "lose_load", on="sync load, lost", caught_by="V1-KV-2, V1-KV-8")
def blocks_of_a_lost_load_are_given_back(
    right: Right, ctx: Context, state: State, one: str, external: int
) -> Moved:
    row = next(row for row in state.running if row.id == one)
    done, events = right(ctx, state, one, external)
    return evolve(done, pool=kv_cache.free(ctx, done.pool, row)), events


@fault(transitions, "undo", on="sync load, lost", caught_by="V1-EXT-4, V1-PRG-1")
def lost_tokens_stay_computed(right: Right, ctx: Context, state: State, *given: Any) -> Moved:
    return state, right(ctx, state, *given)[1]


@fault(transitions, "rollback", on="speculation", caught_by="V1-SPC-2, V1-SPC-3, V1-PRG-1")
def rejected_drafts_stay(right: Right, ctx: Context, state: State, *given: Any) -> Moved:
    return state, right(ctx, state, *given)[1]


@fault(transitions, "rollback", on="speculation", caught_by="guard V1-PRG-2")
def all_drafts_are_rolled_back(
    right: Right, ctx: Context, state: State, one: str, drafts: int, accepted: int
) -> Moved:
    _, events = right(ctx, state, one, drafts, accepted)
    return right(ctx, state, one, drafts, 0)[0], events


@fault(transitions, "sample", on="uncut", caught_by="V1-LIF-4")
def two_tokens_at_once(right: Right, ctx: Context, state: State, one: str) -> State:
    sampled: State = right(ctx, state, one)
    rows = tuple(
        evolve(row, generated=row.generated + 1) if row.id == one else row
        for row in sampled.running
    )
    return evolve(sampled, running=rows)


@fault(transitions, "finish", on="uncut", caught_by="V1-LIF-5")
def end_not_reported(right: Right, ctx: Context, state: State, one: str) -> Moved:
    finished, events = right(ctx, state, one)
    return evolve(finished, unreported=state.unreported), events


@fault(transitions, "finish", on="uncut", caught_by="V1-KV-2, V1-KV-8")
def finished_keeps_its_blocks(right: Right, ctx: Context, state: State, one: str) -> Moved:
    finished, events = right(ctx, state, one)
    return evolve(finished, pool=state.pool), events


@fault(transitions, "finish", on="uncut", caught_by="V1-KV-8, V1-LIF-1")
def finished_and_still_running(right: Right, ctx: Context, state: State, one: str) -> Moved:
    finished, events = right(ctx, state, one)
    return evolve(finished, running=state.running, pool=state.pool), events


@fault(step, "statistics", on="uncut", caught_by="V1-STA-1")
def usage_counts_free_blocks(right: Right, state: State) -> Any:
    told = right(state)
    return evolve(told, usage=1 - told.usage)


# --- the KV cache ---------------------------------------------------------------------------


@fault(kv_cache, "blocks_taken", of="allocate_slots", on="uncut", caught_by="V1-KV-7")
def a_block_too_many(right: Right, *given: Any) -> int:
    return int(right(*given)) + 1


@fault(kv_cache, "fits", on="fcfs", caught_by="guard BLK-1")
def blocks_are_never_lacking(_right: Right, *_given: Any) -> bool:
    return True


@fault(
    kv_cache,
    "cache_blocks",
    on="speculation, padding",
    caught_by="V1-KV-8, V1-KV-10, V1-KV-11, V1-KV-12",
)
def drafts_are_cached(
    right: Right, ctx: Context, pool: BlockPool, one: Sequence, tokens: int
) -> BlockPool:
    room = len(one.blocks) * ctx.config.block_size
    has_drafts = one.generated > 0 and tokens == one.tokens
    cached: BlockPool = right(ctx, pool, one, room if has_drafts else tokens)
    return cached


@fault(kv_cache, "cache_blocks", on="eviction, 0.11.2", caught_by="V1-KV-10, V1-KV-12")
def half_computed_blocks_are_cached(
    right: Right, ctx: Context, pool: BlockPool, one: Sequence, _tokens: int
) -> BlockPool:
    room = len(one.blocks) * ctx.config.block_size
    cached: BlockPool = right(ctx, pool, one, min(one.tokens, room))
    return cached


@fault(step, "schedule_waiting", of="admit", on="threshold", caught_by="V1-SEQ-1")
def slots_ignored(right: Right, ctx: Context, plan: Plan) -> Plan:
    done: Plan = right(evolve(ctx, config=evolve(ctx.config, max_num_seqs=3)), plan)
    return done


@fault(kv_cache, "free", on="uncut", caught_by="V1-KV-8")
def table_freed_from_its_head(
    right: Right, ctx: Context, pool: BlockPool, one: Sequence
) -> BlockPool:
    freed: BlockPool = right(ctx, pool, evolve(one, blocks=tuple(reversed(one.blocks))))
    return freed


@fault(step, "prefix_hits", on="shared prefix", caught_by="V1-KV-4")
def one_hit_less(right: Right, *given: Any) -> tuple[int, ...]:
    found: tuple[int, ...] = right(*given)
    return found[:-1]


@fault(step, "_found", of="prefix_hits", on="shared prefix", caught_by="V1-KV-5, V1-KV-9")
def last_token_of_a_cached_prompt_only(
    right: Right, ctx: Context, state: State, one: Sequence
) -> Demand:
    whole = ctx.keys.of(one.id, one.tokens // ctx.config.block_size)
    found = [state.pool.cached[key][0] for key in whole if key in state.pool.cached]
    if one.tokens % ctx.config.block_size or len(found) < len(whole):
        return right(ctx, state, one)  # type: ignore[no-any-return]
    return Demand(hits=tuple(found), external=-1)


@fault(kv_cache, "free", on="uncut", caught_by="V1-KV-1, V1-KV-8, V1-STA-1")
def a_block_is_lost(right: Right, *given: Any) -> BlockPool:
    freed: BlockPool = right(*given)
    return evolve(freed, free=freed.free[:-1])


@fault(kv_cache, "cache_blocks", on="shared prefix", caught_by="V1-KV-3")
def hash_is_not_mapped_back(right: Right, ctx: Context, pool: BlockPool, *given: Any) -> BlockPool:
    cached: BlockPool = right(ctx, pool, *given)
    return evolve(cached, cached=pool.cached)


@fault(step, "waiting_tokens", of="admit", on="fcfs", caught_by="guard V1-BUD-1")
def budget_ignored(right: Right, *given: int) -> int:
    tokens, computed, threshold, budget = given
    return int(right(tokens, computed, threshold, budget + 6))


@fault(step, "running_tokens", of="catch_up", on="uncut", caught_by="V1-BUD-4, V1-PRG-4")
def running_requests_are_left_out(_right: Right, *_given: int) -> int:
    return 0


@fault(transitions, "_scheduled", of="catch_up", on="speculation", caught_by="V1-PRG-1, V1-SPC-1")
def a_draft_is_not_told(
    right: Right, plan: Plan, request_id: str, new_tokens: int, drafts: int
) -> Plan:
    done: Plan = right(plan, request_id, new_tokens, max(drafts - 1, 0))
    return done


@fault(step, "_sample", of="sample", on="speculation", caught_by="V1-LIF-4, V1-SPC-4")
def accepted_drafts_are_not_told(
    right: Right, results: Any, plan: Plan, row: Sequence, *given: Any
) -> None:
    right(results, plan, row, *given)
    results.outputs[row.id] = results.outputs[row.id][:1]


@fault(transitions, "pass_over", on="async load", caught_by="V1-EXT-1, V1-ORD-3")
def loading_is_taken_for_loaded(right: Right, ctx: Context, plan: Plan, one: Sequence) -> Plan:
    done: Plan = right(ctx, plan, one)
    return evolve(done, looked_at=(*plan.looked_at, evolve(one, load=Load.LOADED)))
