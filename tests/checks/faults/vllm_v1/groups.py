"""Faults of several groups of layers: their hits, their blocks, and states."""

from typing import Any

from attrs import evolve

from reference.vllm_v1 import groups, kv_cache, step, transitions
from reference.vllm_v1.kv_cache import Demand
from reference.vllm_v1.transitions import Plan
from spec.core.blocks import BlockPool
from spec.vllm_v1.groups import KvGroup, group_key
from spec.vllm_v1.records import Context, Sequence
from tests.checks.faults.patches import Wrong, always, first, result
from tests.checks.faults.vllm_v1.table import SAME_IN_GROUPS, fault

_WINDOW, _LARGER = "groups, sliding window", "groups, windows of larger blocks"
_STATES, _NOT_CACHED = "groups, states", "groups, not cached"
_SYNC, _ASYNC = "groups, window, sync", "groups, window, async"
_FLIES, _STATES_FLY = "groups, in flight", "groups, states in flight"

fault(groups, "unread_blocks", of="give_back", on=_NOT_CACHED, rules="V1-GRP-1")(
    lambda right, position, *given: right(position + 2, *given), "a block too many is given back"
)
fault(transitions, "give_back_unread", on=_NOT_CACHED, rules="V1-GRP-2")(
    lambda _right, _ctx, plan, row: (plan, row), "blocks behind the window are kept"
)


@fault(
    groups,
    "allocated",
    of="allocate_in_group",
    on=_NOT_CACHED,
    rules="V1-KV-2, V1-GRP-3, V1-GRP-11, guard BLK-2",
)
def a_group_takes_the_blocks_of_another(
    right: Wrong, ctx: Context, pool: BlockPool, row: Sequence, *given: Any
) -> Any:
    after, (first, _) = right(ctx, pool, row, *given)
    return after, (first, first)


fault(groups, "allocated", of="allocate_in_group", on=_NOT_CACHED, rules="V1-GRP-11")(
    lambda right, *given: _turned_round(*right(*given)), "new blocks are handed out backwards"
)
fault(transitions, "compute", on=_NOT_CACHED, rules="V1-GRP-4, V1-GRP-11")(
    result(running=first(tables=lambda tables: tables[::-1])), "groups exchange their tables"
)


def _turned_round(pool: BlockPool, tables: groups.Tables) -> tuple[BlockPool, groups.Tables]:
    return pool, tuple(table[::-1] for table in tables)


fault(groups, "common_prefix", of="hit_in_group", on=_WINDOW, rules="V1-GRP-5, V1-GRP-13")(
    lambda right, ctx, pool, row, longest: right(ctx, pool, row, longest - 2),
    "a prefix is a block shorter",
)


@fault(groups, "common_prefix", of="hit_in_group", on=_STATES, rules="V1-GRP-1, V1-GRP-5")
def a_group_without_its_state(
    right: Wrong, ctx: Context, pool: BlockPool, row: Sequence, longest: int
) -> Any:
    end, tables = right(ctx, pool, row, longest)
    return (end, tables) if end == longest else (longest, ((0,) * (longest // 2),))


fault(groups, "group_key", of="cached", on=_WINDOW, rules="V1-GRP-6, V1-GRP-10")(
    lambda right, keys, request_id, group, place: right(keys, request_id, group, max(place - 1, 0)),
    "a block is known by the one before it",
)
fault(groups, "cached", on=_WINDOW, rules="V1-GRP-7, V1-GRP-10, V1-GRP-11")(
    lambda right, ctx, pool, row, tokens: right(ctx, pool, row, tokens + 2),
    "a block is cached before it is full",
)
fault(groups, "group_key", of="hit_in_group", on=_WINDOW, rules="V1-GRP-6, V1-GRP-10")(
    lambda _right, _keys, _request_id, group, place: bytes([place, group.number]),
    "a block is known by its place alone",
)
fault(groups, "is_findable", of="cached", on=_LARGER, rules="V1-GRP-10")(
    always(True), "blocks are cached that no hit could read"
)
fault(groups, "freed", of="finish", on=_WINDOW, rules="V1-GRP-11")(
    lambda right, pool, tables: right(pool, tuple(table[::-1] for table in tables)),
    "a table's head is given back first",
)
fault(groups, "without_unread", of="give_back", on=_NOT_CACHED, rules="V1-GRP-11")(
    lambda right, ctx, pool, *given: _to_the_end(pool, *right(ctx, pool, *given)),
    "what is given back is handed out last",
)


def _to_the_end(before: BlockPool, after: BlockPool, *others: Any) -> Any:
    new = [block for block in after.free if block not in before.free]
    free = (*(block for block in after.free if block not in new), *new)
    return evolve(after, free=free), *others


@fault(step, "_make_room", of="preempt", on=_WINDOW, rules="V1-GRP-12, V1-PRE-1")
def a_victim_more(right: Wrong, ctx: Context, plan: Plan, row: Sequence, new: int) -> Plan:
    after: Plan = right(ctx, plan, row, new)
    if len(after.state.running) > 1 and after.state.running[-1].id != row.id:
        return transitions.preempt(ctx, after, after.state.running[-1])
    return after


fault(groups, "missing", of="admit", on=_NOT_CACHED, rules="V1-GRP-13, V1-PRG-4")(
    lambda right, *given, ever=False: [*right(*given, ever=ever), 4 * ever],
    "a request waits for blocks of a group that it does not need",
)
fault(groups, "chunk", of="admit", on=_STATES, rules="V1-BUD-5")(
    lambda _right, _ctx, _row, _start, new, _junction: new, "chunks end anywhere"
)
fault(groups, "reads_fresh_state", of="hit_in_group", on=_STATES, rules="V1-GRP-15")(
    always(False), "a state is read in the step that computes it"
)
fault(groups, "_lacking", of="allocate_in_group", on=_STATES, rules="V1-GRP-14")(
    lambda _right, _ctx, group, end, held, *, ever: max(-(-end // group.block_size) - held, 0),
    "a chunk keeps states that it passes",
)
fault(kv_cache, "found", of="admit", on=_STATES, rules="V1-GRP-16")(
    result(junction=0), "where groups part is forgotten"
)


@fault(
    groups,
    "_cached",
    of="hit_in_group",
    on=_WINDOW,
    rules="V1-GRP-5, V1-GRP-6, V1-GRP-9, V1-GRP-11",
)
def any_held_block_of_the_group(
    right: Wrong, ctx: Context, pool: BlockPool, row: Sequence, group: KvGroup, end: int
) -> Any:
    held = [block for block, key in pool.keys.items() if key[-1:] == bytes([group.number])]
    table = right(ctx, pool, row, group, end)
    in_use = [block for block in held if block in pool.references]
    return table and (*table[:-1], max(in_use, default=table[-1]))


@fault(
    kv_cache,
    "found",
    of="hit_in_group",
    on=SAME_IN_GROUPS.name,
    rules="V1-GRP-8, V1-GRP-10, V1-GRP-11",
)
def the_last_block_of_a_group_is_taken(
    right: Wrong, ctx: Context, pool: BlockPool, row: Sequence
) -> Demand:
    demand: Demand = right(ctx, pool, row)
    taken = []
    for group, table in zip(ctx.config.groups, demand.further_hits, strict=False):
        key = group_key(ctx.keys, row.id, group, len(table))
        taken.append((*table, *pool.cached.get(key, ())[:1]))
    return evolve(demand, further_hits=tuple(taken))


fault(groups, "last_state", of="admit", on="groups, states, 0.33.0", rules="V1-BUD-5")(
    lambda right, *given, for_same_prompt: right(*given, for_same_prompt=not for_same_prompt),
    "the state for the same prompt is not kept, as in 0.28.0",
)

# --- connectors -----------------------------------------------------------------------------------

fault(groups, "with_hits", of="load", on=_ASYNC, rules="V1-GRP-18")(
    lambda right, ctx, row, hits, computed: right(ctx, row, hits, computed + 2),
    "what is loaded has no block where the window begins",
)
fault(groups, "without_unread", of="abort", on=_SYNC, rules="V1-GRP-11")(
    lambda _right, _ctx, pool, row, _computed: (pool, row, []),
    "nothing is free before the rest of a request that leaves",
)
fault(kv_cache, "blocks_spoken_for", of="load", on=_ASYNC, rules="V1-EXT-5")(
    always(0), "a load takes what prompts in progress lack in groups"
)


@fault(kv_cache, "_with_slots", of="admit", on=_SYNC, rules="V1-GRP-11")
def slots_of_groups_first(
    right: Wrong, ctx: Context, pool: BlockPool, row: Sequence, needed: groups.Positions
) -> Any:
    pool, tables = groups.allocated(ctx, pool, row.tables, needed)
    return right(ctx, pool, evolve(row, tables=tables), needed)


# --- beside drafts and steps in flight ------------------------------------------------------------

fault(groups, "without_unread", of="give_back", on=_FLIES, rules="V1-GRP-1")(
    lambda right, ctx, pool, row, _certain: right(ctx, pool, row, row.computed),
    "what a step in flight reads is given back",
)
fault(groups, "without_unread", of="give_back", on="groups, drafts", rules="V1-GRP-1")(
    lambda right, ctx, pool, row, certain: right(ctx, pool, row, certain + 2),
    "what lies behind drafts is given back before they are verified",
)
fault(groups, "most_blocks", of="admit", on="groups, stages", rules="V1-GRP-13, V1-PRG-4")(
    lambda right, reach, uncertain, *given: right(reach, 3 * uncertain, *given),
    "a request reserves more than the steps in flight may hold",
)
fault(groups, "retired_places", of="give_back", on=f"{_STATES_FLY}, 0.33.0", rules="V1-GRP-2")(
    lambda right, *given, over_gaps: right(*given, over_gaps=False),
    "states before a gap are kept, as in 0.28.0",
)
fault(groups, "grown_from", of="allocate_in_group", on=_STATES_FLY, rules="V1-GRP-17")(
    always(0), "it is forgotten from where the tables of states have grown"
)
