"""Every rule of vLLM V1 can fail: wrong versions of each transition, and the rules that notice."""

from inspect import getmembers, isfunction
from typing import Any

import pytest
from attrs import evolve

from checks.explore import explore
from checks.policies.vllm_v1.instances import DEFAULT
from checks.policies.vllm_v1.model import VllmV1Instance
from checks.policies.vllm_v1.policy import VLLM_V1
from reference.vllm_v1 import kv_cache, machine, step, transitions
from reference.vllm_v1.kv_cache import Demand
from reference.vllm_v1.transitions import Moved, Plan
from spec.core.blocks import BlockPool
from spec.core.rule import Kind
from spec.vllm_v1.records import Context, Load, Sequence, State
from spec.vllm_v1.rules import REGISTRY
from tests.checks.planting import Fault, FaultTable, Right, broken_first
from tests.checks.test_vllm_v1 import REFUTED

INSTANCES = {instance.name: instance for instance in DEFAULT}
FAULTS = FaultTable()
fault = FAULTS.fault


# --- between two steps ----------------------------------------------------------------------


@fault("arrive", transitions, "arrive", on="fcfs", caught_by="V1-LIF-3")
def newcomer_in_front(right: Right, ctx: Context, state: State, request_id: str) -> State:
    arrived: State = right(ctx, state, request_id)
    return evolve(arrived, waiting=(arrived.waiting[-1], *arrived.waiting[:-1]))


@fault("abort", transitions, "abort", on="fcfs", caught_by="V1-LIF-6, V1-LIF-5")
def abort_not_reported(right: Right, ctx: Context, state: State, request_id: str) -> State:
    aborted: State = right(ctx, state, request_id)
    return evolve(aborted, unreported=state.unreported)


@fault("abort", transitions, "abort", on="fcfs", caught_by="V1-KV-2, V1-KV-8")
def aborted_keeps_its_blocks(right: Right, ctx: Context, state: State, one: str) -> State:
    aborted: State = right(ctx, state, one)
    return evolve(aborted, pool=state.pool)


@fault("abort", transitions, "abort", on="async load", caught_by="V1-EXT-6, V1-EXT-1")
def aborted_load_gives_its_blocks_back(right: Right, ctx: Context, state: State, one: str) -> State:
    ready = tuple(evolve(row, load=Load.NONE) for row in state.skipped)
    aborted: State = right(ctx, evolve(state, skipped=ready), one)
    kept = tuple(row for row in state.skipped if row.id != one)
    return evolve(aborted, skipped=kept)


@fault("end_load", transitions, "end_load", on="async load", caught_by="V1-EXT-7")
def failed_load_counts(
    right: Right, ctx: Context, state: State, one: str, failed: bool = False
) -> State:
    ended: State = right(ctx, state, one)
    return evolve(ended, lost=ended.lost | {one}) if failed else ended


# --- running --------------------------------------------------------------------------------


@fault("catch_up", transitions, "catch_up", on="fcfs", caught_by="V1-BUD-2")
def running_tokens_are_free(right: Right, ctx: Context, plan: Plan, *given: Any) -> Plan:
    done: Plan = right(ctx, plan, *given)
    return evolve(done, budget=plan.budget)


@fault("catch_up", transitions, "catch_up", on="speculation", caught_by="V1-BUD-3")
def a_draft_too_few(right: Right, ctx: Context, plan: Plan, one: Sequence, new: int) -> Plan:
    done: Plan = right(ctx, plan, one, max(new - 1, 1))
    return done


@fault("catch_up", step, "running_tokens", on="threshold", caught_by="V1-BUD-3, V1-CHK-1")
def threshold_ignored(right: Right, *given: int) -> int:
    tokens, drafts, computed, _threshold, budget, length = given
    return int(right(tokens, drafts, computed, 0, budget, length))


@fault("preempt", transitions, "preempt", on="fcfs", caught_by="V1-PRE-3")
def victim_at_the_end_of_the_queue(right: Right, ctx: Context, plan: Plan, one: Sequence) -> Plan:
    done: Plan = right(ctx, plan, one)
    first, *others = done.state.waiting
    return evolve(done, state=evolve(done.state, waiting=(*others, first)))


@fault(
    "preempt",
    transitions,
    "preempt",
    on="fcfs, two victims",
    caught_by="V1-KV-2, V1-KV-6, V1-PRE-3",
)
def victim_keeps_its_blocks(right: Right, ctx: Context, plan: Plan, one: Sequence) -> Plan:
    done: Plan = right(ctx, plan, one)
    rows = tuple(
        evolve(row, blocks=one.blocks) if row.id == one.id else row for row in done.state.waiting
    )
    return evolve(done, state=evolve(done.state, waiting=rows))


@fault("preempt", transitions, "preempt", on="priority", caught_by="V1-BUD-2")
def no_refund(right: Right, ctx: Context, plan: Plan, one: Sequence) -> Plan:
    done: Plan = right(ctx, plan, one)
    return evolve(done, budget=plan.budget)


@fault("preempt", transitions, "preempt", on="priority", caught_by="guard V1-OUT-1")
def victim_stays_scheduled(right: Right, ctx: Context, plan: Plan, one: Sequence) -> Plan:
    done: Plan = right(ctx, plan, one)
    return evolve(done, scheduled=plan.scheduled, budget=plan.budget)


@fault("preempt", transitions, "preempt", on="priority", caught_by="V1-OUT-1, V1-OUT-2")
def victim_is_told_as_admitted(right: Right, ctx: Context, plan: Plan, one: Sequence) -> Plan:
    done: Plan = right(ctx, plan, one)
    return evolve(done, external={**done.external, one.id: 1})


@fault("preempt", step, "choose_victim", on="fcfs, two victims", caught_by="V1-PRE-2")
def first_of_the_queue_gives_way(_right: Right, _ctx: Context, state: State) -> Sequence:
    return state.running[0]


@fault("preempt", step, "_make_room", on="fcfs, two victims", caught_by="V1-PRE-5")
def one_victim_too_many(right: Right, ctx: Context, plan: Plan, one: Sequence, new: int) -> Plan:
    done: Plan = right(ctx, plan, one, new)
    last = done.state.running[-1]
    if done.preempted == plan.preempted or last.id == one.id:
        return done
    return transitions.preempt(ctx, done, last)


@fault("preempt", step, "_make_room", on="fcfs", caught_by="V1-PRE-1, V1-PRE-5")
def preempts_without_need(right: Right, ctx: Context, plan: Plan, one: Sequence, new: int) -> Plan:
    if len(plan.state.running) > 1 and not plan.preempted:
        plan = transitions.preempt(ctx, plan, plan.state.running[-1])
    return plan if one.id in plan.preempted else right(ctx, plan, one, new)


# --- waiting --------------------------------------------------------------------------------


@fault("admit", step, "_waiting_unless_preempted", on="speculation", caught_by="guard V1-PRE-4")
def admits_after_preemption(_right: Right, ctx: Context, plan: Plan) -> Plan:
    return step.schedule_waiting(ctx, plan)


@fault("admit", step, "schedule_waiting", on="uncut", caught_by="V1-PRG-3, V1-PRG-4")
def nobody_is_admitted(_right: Right, _ctx: Context, plan: Plan) -> Plan:
    return plan


@fault("admit", step, "next_in_queue", on="uncut", caught_by="V1-ORD-2")
def last_of_the_queue_goes_first(_right: Right, _ctx: Context, state: State) -> Sequence | None:
    return state.waiting[-1] if state.waiting else None


@fault("admit", transitions, "admit", on="uncut", caught_by="V1-ORD-1")
def admitted_in_front(right: Right, ctx: Context, plan: Plan, *given: Any) -> Plan:
    done: Plan = right(ctx, plan, *given)
    *others, last = done.state.running
    return evolve(done, state=evolve(done.state, running=(last, *others)))


@fault("admit", transitions, "admit", on="shared prefix", caught_by="V1-BUD-2")
def cached_tokens_count(right: Right, ctx: Context, plan: Plan, *given: Any) -> Plan:
    done: Plan = right(ctx, plan, *given)
    demand: Demand = given[1]
    return evolve(done, budget=done.budget - min(len(demand.hits), done.budget))


@fault("admit", step, "waiting_tokens", on="uncut", caught_by="V1-CHK-2, V1-BUD-5")
def a_token_less(right: Right, *given: int) -> int:
    return max(int(right(*given)) - 1, 1)


@fault("admit", step, "_fits", on="fcfs", caught_by="guard V1-KV-1")
def admits_without_blocks(_right: Right, *_given: Any) -> bool:
    return True


@fault("admit", step, "_padding", on="speculation, padding", caught_by="V1-SPC-5")
def half_the_padding(right: Right, *given: Any) -> int:
    return min(int(right(*given)), 1)


@fault("pass_over", transitions, "pass_over", on="uncut, 0.11.2", caught_by="V1-LIF-2, V1-ORD-3")
def passed_over_is_lost(right: Right, ctx: Context, plan: Plan, one: Sequence) -> Plan:
    done: Plan = right(ctx, plan, one)
    return evolve(done, looked_at=plan.looked_at)


@fault("promote", transitions, "promote", on="async load", caught_by="V1-EXT-3")
def loaded_blocks_not_cached(right: Right, ctx: Context, plan: Plan, one: Sequence) -> Any:
    done, ready = right(ctx, plan, one)
    if not one.computed:
        return done, ready
    return evolve(done, state=evolve(done.state, pool=plan.state.pool)), ready


@fault("load", transitions, "load", on="async load", caught_by="V1-EXT-2")
def loading_blocks_are_cached(
    right: Right, ctx: Context, plan: Plan, one: Sequence, demand: Demand
) -> Plan:
    done: Plan = right(ctx, plan, one, demand)
    loading = done.looked_at[-1]
    pool = kv_cache.cache_blocks(ctx, done.state.pool, loading, loading.computed)
    return evolve(done, state=evolve(done.state, pool=pool))


@fault("load", kv_cache, "blocks_spoken_for", on="async load", caught_by="V1-EXT-5")
def loads_take_what_prompts_need(_right: Right, *_given: Any) -> int:
    return 0


# --- what comes of it -----------------------------------------------------------------------


@fault("compute", transitions, "compute", on="uncut", caught_by="V1-PRG-2, V1-SPC-2")
def nothing_is_computed(_right: Right, _ctx: Context, state: State, _scheduled: Any) -> State:
    return state


@fault("lose_load", transitions, "lose_load", on="sync load, lost", caught_by="V1-KV-2, V1-KV-8")
def blocks_of_a_lost_load_are_given_back(
    right: Right, ctx: Context, state: State, one: str, external: int
) -> Moved:
    row = next(row for row in state.running if row.id == one)
    done, events = right(ctx, state, one, external)
    return evolve(done, pool=kv_cache.free(ctx, done.pool, row)), events


@fault("undo", transitions, "undo", on="sync load, lost", caught_by="V1-EXT-4, V1-PRG-1")
def lost_tokens_stay_computed(right: Right, ctx: Context, state: State, *given: Any) -> Moved:
    return state, right(ctx, state, *given)[1]


@fault(
    "rollback", transitions, "rollback", on="speculation", caught_by="V1-SPC-2, V1-SPC-3, V1-PRG-1"
)
def rejected_drafts_stay(right: Right, ctx: Context, state: State, *given: Any) -> Moved:
    return state, right(ctx, state, *given)[1]


@fault("rollback", transitions, "rollback", on="speculation", caught_by="guard V1-PRG-2")
def all_drafts_are_rolled_back(
    right: Right, ctx: Context, state: State, one: str, drafts: int, accepted: int
) -> Moved:
    _, events = right(ctx, state, one, drafts, accepted)
    return right(ctx, state, one, drafts, 0)[0], events


@fault("sample", transitions, "sample", on="uncut", caught_by="V1-LIF-4")
def two_tokens_at_once(right: Right, ctx: Context, state: State, one: str) -> State:
    sampled: State = right(ctx, state, one)
    rows = tuple(
        evolve(row, generated=row.generated + 1) if row.id == one else row
        for row in sampled.running
    )
    return evolve(sampled, running=rows)


@fault("finish", transitions, "finish", on="uncut", caught_by="V1-LIF-5")
def end_not_reported(right: Right, ctx: Context, state: State, one: str) -> Moved:
    finished, events = right(ctx, state, one)
    return evolve(finished, unreported=state.unreported), events


@fault("finish", transitions, "finish", on="uncut", caught_by="V1-KV-2, V1-KV-8")
def finished_keeps_its_blocks(right: Right, ctx: Context, state: State, one: str) -> Moved:
    finished, events = right(ctx, state, one)
    return evolve(finished, pool=state.pool), events


@fault("finish", transitions, "finish", on="uncut", caught_by="V1-KV-8, V1-LIF-1")
def finished_and_still_running(right: Right, ctx: Context, state: State, one: str) -> Moved:
    finished, events = right(ctx, state, one)
    return evolve(finished, running=state.running, pool=state.pool), events


@fault("statistics", step, "statistics", on="uncut", caught_by="V1-STA-1")
def usage_counts_free_blocks(right: Right, state: State) -> Any:
    told = right(state)
    return evolve(told, usage=1 - told.usage)


# --- the KV cache ---------------------------------------------------------------------------


@fault("allocate_slots", kv_cache, "blocks_taken", on="uncut", caught_by="V1-KV-7")
def a_block_too_many(right: Right, *given: Any) -> int:
    return int(right(*given)) + 1


@fault("fits", kv_cache, "fits", on="fcfs", caught_by="guard BLK-1")
def blocks_are_never_lacking(_right: Right, *_given: Any) -> bool:
    return True


@fault(
    "cache_blocks",
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


@fault(
    "cache_blocks", kv_cache, "cache_blocks", on="eviction, 0.11.2", caught_by="V1-KV-10, V1-KV-12"
)
def half_computed_blocks_are_cached(
    right: Right, ctx: Context, pool: BlockPool, one: Sequence, _tokens: int
) -> BlockPool:
    room = len(one.blocks) * ctx.config.block_size
    cached: BlockPool = right(ctx, pool, one, min(one.tokens, room))
    return cached


@fault("admit", step, "schedule_waiting", on="threshold", caught_by="V1-SEQ-1")
def slots_ignored(right: Right, ctx: Context, plan: Plan) -> Plan:
    done: Plan = right(evolve(ctx, config=evolve(ctx.config, max_num_seqs=3)), plan)
    return done


@fault("free", kv_cache, "free", on="uncut", caught_by="V1-KV-8")
def table_freed_from_its_head(
    right: Right, ctx: Context, pool: BlockPool, one: Sequence
) -> BlockPool:
    freed: BlockPool = right(ctx, pool, evolve(one, blocks=tuple(reversed(one.blocks))))
    return freed


@fault("prefix_hits", step, "prefix_hits", on="shared prefix", caught_by="V1-KV-4")
def one_hit_less(right: Right, *given: Any) -> tuple[int, ...]:
    found: tuple[int, ...] = right(*given)
    return found[:-1]


@fault("prefix_hits", step, "_found", on="shared prefix", caught_by="V1-KV-5, V1-KV-9")
def last_token_of_a_cached_prompt_only(
    right: Right, ctx: Context, state: State, one: Sequence
) -> Demand:
    whole = ctx.keys.of(one.id, one.tokens // ctx.config.block_size)
    found = [state.pool.cached[key][0] for key in whole if key in state.pool.cached]
    if one.tokens % ctx.config.block_size or len(found) < len(whole):
        return right(ctx, state, one)  # type: ignore[no-any-return]
    return Demand(hits=tuple(found), external=-1)


@fault("free", kv_cache, "free", on="uncut", caught_by="V1-KV-1, V1-KV-8, V1-STA-1")
def a_block_is_lost(right: Right, *given: Any) -> BlockPool:
    freed: BlockPool = right(*given)
    return evolve(freed, free=freed.free[:-1])


@fault("cache_blocks", kv_cache, "cache_blocks", on="shared prefix", caught_by="V1-KV-3")
def hash_is_not_mapped_back(right: Right, ctx: Context, pool: BlockPool, *given: Any) -> BlockPool:
    cached: BlockPool = right(ctx, pool, *given)
    return evolve(cached, cached=pool.cached)


@fault("admit", step, "waiting_tokens", on="fcfs", caught_by="guard V1-BUD-1")
def budget_ignored(right: Right, *given: int) -> int:
    tokens, computed, threshold, budget = given
    return int(right(tokens, computed, threshold, budget + 6))


@fault("catch_up", step, "running_tokens", on="uncut", caught_by="V1-BUD-4, V1-PRG-4")
def running_requests_are_left_out(_right: Right, *_given: int) -> int:
    return 0


@fault("catch_up", transitions, "_scheduled", on="speculation", caught_by="V1-PRG-1, V1-SPC-1")
def a_draft_is_not_told(
    right: Right, plan: Plan, request_id: str, new_tokens: int, drafts: int
) -> Plan:
    done: Plan = right(plan, request_id, new_tokens, max(drafts - 1, 0))
    return done


@fault("sample", step, "_sample", on="speculation", caught_by="V1-LIF-4, V1-SPC-4")
def accepted_drafts_are_not_told(
    right: Right, results: Any, plan: Plan, row: Sequence, *given: Any
) -> None:
    right(results, plan, row, *given)
    results.outputs[row.id] = results.outputs[row.id][:1]


@fault("pass_over", transitions, "pass_over", on="async load", caught_by="V1-EXT-1, V1-ORD-3")
def loading_is_taken_for_loaded(right: Right, ctx: Context, plan: Plan, one: Sequence) -> Plan:
    done: Plan = right(ctx, plan, one)
    return evolve(done, looked_at=(*plan.looked_at, evolve(one, load=Load.LOADED)))


def noticed_first(instance: VllmV1Instance) -> set[str]:
    """What is broken first of the rules that hold without a fault, endless runs left out."""
    model = VLLM_V1.model(instance)
    refuted = REFUTED.get(instance.name, set())
    holding = [one for one in VLLM_V1.properties_of(model).safety if one.rule not in refuted]
    return broken_first(model, holding)


@pytest.mark.parametrize("fault", [pytest.param(one, id=one.name) for one in FAULTS])
def test_planted_fault_breaks_the_rule_that_names_it_and_no_unrelated_one(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault.plant(monkeypatch)

    assert noticed_first(INSTANCES[fault.instance]) == set(fault.rules)


def test_a_scheduler_that_admits_nobody_is_refuted_by_an_endless_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(step, "schedule_waiting", lambda _ctx, plan: plan)
    model = VLLM_V1.model(INSTANCES["lookahead"])
    liveness = [one for one in VLLM_V1.properties_of(model).all if one.rule == "V1-PRG-5"]

    result = explore(model, liveness, keep_going=True)

    assert "V1-PRG-5" in {violation.rule for violation in result.violations}


def test_a_request_larger_than_the_pool_is_noticed_where_it_is_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "refuse_unservable", lambda _request, _config: None)
    small = INSTANCES["lookahead"]
    tiny = evolve(small, name="tiny", config=evolve(small.config, num_blocks=2))

    assert "V1-LIF-7" in noticed_first(tiny)


def test_every_transition_has_a_planted_fault() -> None:
    helpers = {"queued", "rank", "without", "replaced", "valid_tokens"}
    changing = {
        name
        for name, function in getmembers(transitions, isfunction)
        if function.__module__ == transitions.__name__ and not name.startswith("_")
    }

    assert changing - helpers <= {fault.transition for fault in FAULTS}


def test_every_rule_notices_a_planted_fault() -> None:
    noticed = {rule.removeprefix("guard ") for fault in FAULTS for rule in fault.rules}
    on_endless_runs = {rule.id for rule in REGISTRY.values() if rule.kind is Kind.EVENTUALLY}

    # A request larger than the pool has a test of its own, above.
    assert REGISTRY.keys() - noticed - on_endless_runs == {"V1-LIF-7"}
