"""Faults of the block manager, and of the memory of either device."""

from collections import Counter
from typing import Any

from attrs import evolve

from reference.core import block_pool
from reference.core.frozen_map import updated
from reference.vllm_v0 import block_manager, memory, swapping
from reference.vllm_v0.block_manager import Fit
from spec.vllm_v0.records import Context, Group, State
from tests.checks.faults.patches import (
    Wrong,
    always,
    backwards,
    changed,
    configured,
    each,
    from_the_tail,
    kept,
    result,
)
from tests.checks.faults.vllm_v0.table import fault

# --- what both devices have in common -------------------------------------------------------------

fault(block_manager, "with_gpu", on="whole hit", rules="V0-PFX-4")(
    kept("computed"), "what was computed is computed"
)
fault(block_manager, "with_gpu", on="whole hit", rules="V0-BLK-12")(
    kept("marks"), "uses are not noted"
)
fault(block_manager, "gpu", on="whole hit", rules="V0-PFX-4")(
    result(computed=frozenset()), "what was computed is unknown"
)
fault(block_manager, "full_keys", on="whole hit", rules="V0-PFX-3, V0-PFX-6, V0-PFX-8")(
    lambda right, ctx, one, tokens: right(ctx, one, tokens + ctx.config.block_size - 1),
    "content of a block that is not full",
)
fault(block_manager, "full_keys", on="whole hit", rules="V0-PFX-4")(
    lambda right, ctx, one, tokens: right(ctx, one, max(tokens - ctx.config.block_size, 0)),
    "content of the last full block is unknown",
)
fault(block_manager, "full_keys", on="whole hit", rules="V0-PFX-4, V0-PFX-8")(
    lambda right, ctx, one, tokens: right(ctx, ctx.owners[one], tokens),
    "content of the first sequence",
)


# --- admission ------------------------------------------------------------------------------------

fault(block_manager, "can_allocate", on="outgrows the GPU", rules="V0-PRG-1")(
    always(Fit.NOW), "prompts always find blocks"
)
fault(block_manager, "can_allocate", on="swap, little room on the CPU", rules="V0-ADM-1")(
    configured(watermark_blocks=0), "prompts take the watermark"
)
fault(block_manager, "can_allocate", on="chunked, multi-step", rules="V0-PRG-1")(
    lambda right, *given: right(*given[:-1], 0), "prompts find no lookahead"
)
fault(block_manager, "can_allocate", on="outgrows the GPU", rules="V0-ADM-2")(
    lambda right, *given: right(*given[:-1], given[-1] + given[0].config.block_size),
    "prompts find a block less",
)
fault(block_manager, "can_allocate", on="outgrows the GPU", rules="V0-PRG-2")(
    lambda right, *given: Fit.LATER if right(*given) is Fit.NEVER else right(*given),
    "too large for the GPU waits",
)
fault(block_manager, "can_allocate", on="outgrows the GPU", rules="V0-ADM-2")(
    lambda right, *given: Fit.NEVER if right(*given) is Fit.LATER else right(*given),
    "what does not fit now never will",
)
fault(block_manager, "cached_tokens", on="whole hit", rules="V0-PFX-2, V0-PFX-7")(
    lambda right, ctx, state, group: right(
        ctx, evolve(state, computed=frozenset(state.pool.keys)), group
    ),
    "what is not computed yet counts as cached",
)
fault(block_manager, "cached_tokens", on="whole hit", rules="V0-PFX-2")(
    always(0), "nothing counts as cached"
)
fault(block_manager, "cached_tokens", on="whole hit", rules="V0-PFX-2")(
    lambda right, ctx, state, group: max(right(ctx, state, group) - ctx.config.block_size, 0),
    "last block found does not count",
)
fault(block_manager, "cached_tokens", on="whole hit", rules="V0-PFX-2, V0-PFX-7")(
    lambda right, ctx, state, group: (
        len(
            set(ctx.keys.of(group.id, group.tokens // ctx.config.block_size))
            & state.pool.cached.keys()
        )
        * ctx.config.block_size
    ),
    "any blocks found count",
)


def _first(group: Group, **fields: Any) -> Group:
    return evolve(group, sequences=(evolve(group.sequences[0], **fields), *group.sequences[1:]))


@fault(block_manager, "allocate", on="swap, little room on the CPU", rules="V0-BLK-6, V0-LKA-6")
def sampled_tokens_get_no_slot(right: Wrong, ctx: Context, state: State, group: Group) -> Any:
    after, running = right(ctx, state, group)
    return after, _first(running, slots=group.prompt_len)


@fault(block_manager, "allocate", on="whole hit", rules="V0-PFX-4, V0-PFX-6, V0-PFX-8")
def table_turned_round(right: Wrong, ctx: Context, state: State, group: Group) -> Any:
    after, running = right(ctx, state, group)
    return after, _first(running, blocks=running.sequences[0].blocks[::-1])


@fault(block_manager, "allocate", on="encoder", rules="V0-ADM-1, V0-BLK-10, V0-BLK-11, V0-BLK-3")
def encoder_gets_the_first_block(right: Wrong, ctx: Context, state: State, group: Group) -> Any:
    after, running = right(ctx, state, group)
    return after, evolve(running, cross=running.cross[:1])


# --- slots of new tokens --------------------------------------------------------------------------

fault(block_manager, "unseen", on="outgrows the GPU", rules="V0-LKA-1, V0-LKA-6, V0-SEQ-3")(
    lambda right, *given: max(right(*given) - 1, 0), "newest token gets no slot"
)
fault(block_manager, "unseen", on="outgrows the GPU", rules="V0-PRE-1, V0-PRE-2, V0-PRE-9")(
    lambda right, *given: right(*given) + 1, "a slot for a token that is not there"
)
fault(block_manager, "can_append_slots", on="outgrows the GPU", rules="V0-PRG-1")(
    always(True), "slots are never lacking"
)
fault(block_manager, "can_append_slots", on="chunked, delay", rules="V0-PRE-1, V0-PRE-2, V0-PRE-9")(
    lambda right, ctx, state, *given: right(
        ctx, changed(pool=changed(free=lambda free: free[1:]))(state), *given
    ),
    "last free block is not seen",
)


@fault(
    block_manager, "_blocks_lacking", of="can_append_slots", on="forks, recompute", rules="V0-PRG-1"
)
def copies_need_no_block(
    right: Wrong, ctx: Context, state: State, group: Group, lookahead: int
) -> Any:
    unshared = dict.fromkeys(state.pool.references, 1)
    pool = evolve(state.pool, references=updated(state.pool.references, unshared))
    return right(ctx, evolve(state, pool=pool), group, lookahead)


@fault(
    block_manager,
    "_blocks_lacking",
    of="can_append_slots",
    on="chunked, forks",
    rules="V0-PRE-1, V0-PRE-2, V0-PRE-9",
)
def last_to_write_needs_a_copy(
    right: Wrong, ctx: Context, state: State, group: Group, lookahead: int
) -> Any:
    places = Counter(block for row in group.sequences for block in {*row.blocks[-1:]})
    is_shared = any(count > 1 for count in places.values())
    return right(ctx, state, group, lookahead) + is_shared


fault(block_manager, "_append", of="append_slots", on="chunked, multi-step", rules="V0-LKA-2")(
    lambda right, *given: right(*given[:-1], 0), "no blocks for lookahead"
)
fault(block_manager, "_append", of="append_slots", on="outgrows the GPU", rules="V0-PRG-1")(
    lambda right, ctx, *given: right(ctx, *given[:-1], given[-1] + ctx.config.block_size),
    "a block too many",
)
fault(block_manager, "fork", on="outgrows the GPU", rules="V0-BLK-3")(
    kept("pool"), "children are not counted as holders"
)


@fault(block_manager, "fork", on="outgrows the GPU", rules="V0-BLK-3, V0-BLK-6, V0-SEQ-2")
def children_share_full_blocks_only(right: Wrong, ctx: Context, *given: Any) -> Any:
    state, group = right(ctx, *given)
    parent, *children = group.sequences
    full = parent.slots // ctx.config.block_size
    short = each(blocks=parent.blocks[:full])(tuple(children))
    return state, evolve(group, sequences=(parent, *short))


# --- swapping -------------------------------------------------------------------------------------

fault(swapping, "_fit", of="can_swap_in", on="outgrows the GPU", rules="V0-PRG-1")(
    always(Fit.NOW), "swapped groups always fit"
)
fault(swapping, "_fit", of="can_swap_in", on="swap, watermark", rules="V0-SWP-13")(
    lambda right, memory, needed, _watermark: right(memory, needed, 0),
    "swapped groups take the watermark",
)
fault(
    swapping,
    "_fit",
    of="can_swap_in",
    on="swap, little room on the CPU",
    rules="V0-SWP-7, V0-SWP-8",
)(
    lambda right, *given: Fit.NEVER if right(*given) is Fit.LATER else right(*given),
    "what does not fit now is ended",
)
fault(swapping, "_needed", of="can_swap_in", on="swap, little room on the CPU", rules="V0-PRG-1")(
    lambda right, *given: max(right(*given) - 1, 0), "a swapped block is overlooked"
)
fault(swapping, "_needed", of="can_swap_in", on="swap, little room on the CPU", rules="V0-PRE-5")(
    lambda right, *given: right(*given) + 1, "a swapped block is counted twice"
)
fault(swapping, "_needed", of="can_swap_in", on="swap, little room on the CPU", rules="V0-PRE-5")(
    lambda right, *given: right(*given[:-1], 0), "lookahead is not swapped in"
)
fault(swapping, "_needed", of="can_swap_in", on="encoder, swap", rules="V0-PRG-1")(
    lambda right, ctx, target, group, *given: right(ctx, target, evolve(group, cross=()), *given),
    "encoder is not swapped in",
)
fault(swapping, "_needed_of", of="can_swap_in", on="swap, shared prefix", rules="V0-SWP-6")(
    lambda right, ctx, target, *given: right(ctx, memory.Memory(block_pool.new_pool(0)), *given),
    "nothing is there already",
)
fault(swapping, "can_swap_out", on="swap, little room on the CPU", rules="V0-PRG-1")(
    always(True), "the CPU is never full"
)
fault(swapping, "can_swap_out", on="outgrows the GPU", rules="V0-PRE-5")(
    always(False), "the CPU is full"
)
fault(swapping, "can_swap_in", on="swap, watermark", rules="V0-SWP-13")(
    lambda right, ctx, state, *given: right(ctx, evolve(state, running=()), *given),
    "watermark is taken while others run",
)
fault(swapping, "can_swap_in", on="outgrows the GPU", rules="V0-PRG-2")(
    always(Fit.LATER), "what is swapped out stays"
)
fault(swapping, "swap_out", on="outgrows the GPU", rules="V0-BLK-3")(
    kept("pool"), "GPU blocks stay held"
)


@fault(swapping, "swap_out", on="outgrows the GPU", rules="V0-BLK-10, V0-LIF-6")
def swapped_out_counts_as_on_the_gpu(right: Wrong, *given: Any) -> Any:
    state, group, pairs = right(*given)
    return state, evolve(group, is_swapped=False), pairs


@fault(swapping, "swap_in", on="swap, little room on the CPU", rules="V0-BLK-10, V0-SWP-2")
def back_with_a_turned_table(right: Wrong, *given: Any) -> Any:
    state, group, pairs = right(*given)
    return state, evolve(group, sequences=each(blocks=backwards)(group.sequences)), pairs


@fault(swapping, "_swap", of="swap_out", on="outgrows the GPU", rules="V0-SWP-2")
def last_block_is_not_copied(right: Wrong, *given: Any) -> Any:
    source, target, group, pairs = right(*given)
    return source, target, group, pairs[:-1]


# --- giving back ----------------------------------------------------------------------------------

fault(
    block_manager,
    "free_tables",
    on="outgrows the GPU",
    rules="V0-BLK-3, V0-LIF-6, V0-LKA-6, V0-PRE-7",
)(
    lambda right, ctx, state, group, rows: right(ctx, state, group, list(rows)[1:]),
    "first table is not given back",
)
fault(
    block_manager,
    "free_tables",
    on="forks, several",
    rules="V0-BLK-10, V0-LIF-6, V0-LKA-6, V0-SEQ-2",
)(
    lambda right, ctx, state, group, _rows: right(ctx, state, group, group.sequences),
    "siblings lose their tables",
)
fault(block_manager, "_give_back", of="free_tables", on="outgrows the GPU", rules="guard BLK-2")(
    lambda right, ctx, state, group, row: right(ctx, state, evolve(group, is_swapped=False), row),
    "CPU blocks are given back to the GPU",
)
fault(block_manager, "_give_back", of="free_tables", on="whole hit", rules="V0-BLK-12")(
    lambda right, ctx, state, group, row: right(ctx, state, evolve(group, mark=0), row),
    "given back as if never used",
)

# --- computed blocks ------------------------------------------------------------------------------

fault(block_manager, "mark_computed", on="whole hit", rules="V0-PFX-4")(
    lambda _right, _ctx, state, _groups: state, "nothing counts as computed"
)
fault(block_manager, "mark_computed", on="partial prefills, three", rules="V0-PFX-3")(
    lambda right, ctx, state, groups: right(
        ctx, state, {id_: count + ctx.config.block_size for id_, count in groups.items()}
    ),
    "a block too many counts as computed",
)
fault(block_manager, "mark_computed", on="partial prefills, three", rules="V0-PFX-3")(
    lambda _right, _ctx, state, _groups: evolve(state, computed=frozenset(state.pool.keys)),
    "whatever has contents counts as computed",
)
fault(block_manager, "mark_computed", on="whole hit", rules="V0-PFX-4")(
    lambda right, ctx, state, _groups: right(ctx, state, {group.id: 0 for group in state.running}),
    "what this step computes does not count",
)

# --- memory ---------------------------------------------------------------------------------------


@fault(memory, "allocate", of="hand_out", on="shared prefix", rules="V0-BLK-9")
def last_used_one_is_handed_out_first(right: Wrong, pool: Any, count: int) -> Any:
    full = [block for block in pool.free if block in pool.keys]
    turned = (*(block for block in pool.free if block not in pool.keys), *reversed(full))
    after, blocks = right(evolve(pool, free=turned), count)
    return evolve(after, free=tuple(block for block in pool.free if block not in blocks)), blocks


fault(memory, "allocate", of="hand_out", on="outgrows the GPU", rules="V0-BLK-10")(
    from_the_tail, "handed out from the tail"
)
fault(memory, "allocate", of="hand_out", on="outgrows the GPU", rules="V0-BLK-1, V0-BLK-10")(
    kept("free"), "handed out and free"
)
fault(block_pool, "evict", of="hand_out", on="shared prefix", rules="V0-PFX-4, V0-PFX-6")(
    lambda _right, pool, _blocks: pool, "handed out with its old content"
)
fault(memory, "hand_out", on="shared prefix", rules="V0-PFX-3")(
    kept("computed"), "handed out as computed"
)
fault(memory, "touch", of="hit", on="whole hit", rules="V0-BLK-1, V0-BLK-13")(
    kept("free"), "found and free"
)
fault(memory, "touch", of="hit", on="whole hit", rules="V0-BLK-3")(
    kept("references"), "second holder is not counted"
)
fault(memory, "hold", on="forks, several", rules="guard BLK-2, V0-BLK-3")(
    lambda right, *given: right(*given[:-1], 1), "one more holder, however many there are"
)
fault(memory, "give_back", on="chunked, delay", rules="V0-BLK-10")(
    lambda right, memory, table, *mark: right(memory, table[::-1], *mark),
    "table freed from its head",
)
fault(memory, "give_back", on="whole hit", rules="V0-BLK-12")(
    lambda right, memory, table, *_mark: right(memory, table), "last use is not noted"
)
fault(memory, "release", of="give_back", on="outgrows the GPU", rules="V0-BLK-1, V0-BLK-10")(
    result(free=lambda free: free[1:]), "a block is lost"
)
fault(memory, "fill", on="whole hit", rules="V0-PFX-7")(
    lambda right, memory, keys, others: right(memory, (), len(keys) + others), "nothing is shared"
)
fault(memory, "copy_on_write", on="outgrows the GPU", rules="V0-BLK-7, V0-SEQ-3, V0-SEQ-4")(
    lambda _right, memory, block: (memory, block), "shared block is written to"
)
fault(memory, "copy_on_write", on="outgrows the GPU", rules="V0-BLK-3")(
    lambda _right, before, block: (
        memory.hand_out(before, 1)
        and (memory.hand_out(before, 1)[0], memory.hand_out(before, 1)[1][0])
    ),
    "copied block stays held",
)
fault(memory, "become_full", on="released, chunked, caching, swap", rules="V0-PFX-4")(
    lambda _right, memory, block, _key: (memory, block), "full block is not known"
)
fault(memory, "become_full", on="released, chunked, caching", rules="V0-BLK-8")(
    lambda right, before, block, key: (
        (evolve(before, pool=block_pool.register(before.pool, (block,), (key,))), block)
    ),
    "same content twice",
)
fault(memory, "compute", on="whole hit", rules="V0-PFX-4")(
    kept("computed"), "known blocks do not count as computed"
)
fault(memory, "is_computed", on="whole hit", rules="V0-PFX-2, V0-PFX-7")(
    lambda _right, memory, key: key in memory.pool.cached, "known passes for computed"
)
fault(memory, "is_computed", on="whole hit", rules="V0-PFX-2")(
    always(False), "never computed before"
)
fault(memory, "forget", on="chunked, caching, an answer", rules="V0-SEQ-7")(
    lambda _right, memory, _key: memory, "content that is not computed stays known"
)
fault(block_manager, "_written", of="append_slots", on="outgrows the GPU", rules="V0-SEQ-7")(
    lambda right, *given: (*right(*given)[:2], []), "a copy is not reported"
)
fault(
    block_manager,
    "_written",
    of="append_slots",
    on="released, chunked, caching, swap",
    rules="V0-PFX-4",
)(
    lambda right, ctx, memory, block, _key: right(ctx, memory, block, None),
    "what is full is not known",
)
fault(memory, "_in_eviction_order", of="give_back", on="released, prefix", rules="V0-BLK-13")(
    lambda _right, pool, _marks: pool, "evicted as they were freed"
)
fault(memory, "_in_eviction_order", of="give_back", on="shared prefix", rules="V0-BLK-13")(
    lambda right, pool, marks: right(
        pool, updated(marks, {block: -mark for block, mark in marks.items()})
    ),
    "last used is evicted first",
)
fault(memory, "_in_eviction_order", of="give_back", on="whole hit", rules="V0-BLK-13")(
    lambda right, pool, marks: changed(
        free=lambda free: (
            *(b for b in free if b in pool.keys),
            *(b for b in free if b not in pool.keys),
        )
    )(right(pool, marks)),
    "contents before blank blocks",
)
