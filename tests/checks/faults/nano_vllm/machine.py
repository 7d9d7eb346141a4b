"""Faults of the machine: block manager, transitions, schedule()."""

from typing import Any

from attrs import evolve

from reference.core.frozen_map import without
from reference.nano_vllm import block_manager, machine, step, transitions
from spec.core import requests
from spec.nano_vllm import block_hashes, formulas
from spec.nano_vllm.config import HitCheck, MemoryGate
from tests.checks.faults.nano_vllm.table import (
    BUDGET,
    DECODED,
    DRY,
    ELSEWHERE,
    PREFIX,
    SHARED,
    fault,
)
from tests.checks.faults.patches import (
    Wrong,
    always,
    backwards,
    changed,
    configured,
    depending,
    first,
    first_to_back,
    from_the_tail,
    held_once,
    kept,
    last_to_front,
    once_held,
    one_block_less,
    own_tokens_only,
    plus,
    result,
)

# --- block manager ------------------------------------------------------------------------------

fault(machine, "new_pool", on=BUDGET, rules="NANO-BLK-1, NANO-BLK-3")(
    lambda right, size: evolve(right(size), free=tuple(range(size - 1))),
    "a block is missing: the pool starts without its last block",
)
fault(block_manager, "take", on=BUDGET, rules="NANO-BLK-5")(
    from_the_tail, "handed out from the tail: blocks are handed out from the tail of the free list"
)
fault(block_manager, "take", on=BUDGET, rules="NANO-BLK-1, NANO-BLK-3, NANO-BLK-5")(
    kept("free"), "handed out and free: blocks that are handed out stay in the free list"
)
fault(
    block_manager,
    "take",
    on=BUDGET,
    rules="NANO-BLK-2, NANO-BLK-1, NANO-BLK-3, NANO-BLK-4, NANO-BLK-5, "
    "NANO-PFX-1, NANO-PFX-2, NANO-SLT-1",
)(
    lambda right, pool, count: (right(pool, count)[0], right(pool, count)[1][:1] * count),
    "one block for all: a sequence gets the same block for all its places",
)
fault(block_manager, "take", on=DRY, rules="NANO-PFX-1, NANO-PFX-11")(
    kept("keys"), "old hash stays: a block that is allocated again keeps its old hash"
)
fault(transitions, "register", on=BUDGET, rules="NANO-PFX-1, NANO-PFX-11")(
    kept("keys"),
    "named and not hashed: the lookup table names a block that does not carry the hash",
)
fault(transitions, "share", on=SHARED, rules="NANO-BLK-2, guard NANO-BLK-2, NANO-BLK-5")(
    once_held, "second holder not counted: a further holder of a block is not counted"
)
fault(transitions, "share", on=SHARED, rules="NANO-BLK-1, NANO-BLK-3, NANO-BLK-5")(
    kept("free"), "revived and free: a cached block that is taken again stays in the free list"
)
fault(transitions, "deallocate", on=BUDGET, rules="NANO-BLK-5")(
    lambda right, pool, blocks: right(pool, blocks[::-1]),
    "given back head first: a table is given back with its first block first",
)
fault(transitions, "deallocate", on=SHARED, rules="NANO-BLK-2, NANO-BLK-1, NANO-BLK-3, NANO-BLK-5")(
    lambda right, pool, blocks: right(held_once(pool, blocks), blocks),
    "freed by the first holder: blocks are freed although another sequence holds them",
)
fault(transitions, "block_keys", on=PREFIX, rules="NANO-PFX-11, NANO-PFX-2")(
    lambda right, *given: [block_hashes.content(key) for key in right(*given)],
    "hashes not chained: a block's hash covers its own tokens only",
)
fault(requests, "blake2b", of="block_keys", on=PREFIX, rules="NANO-PFX-10, NANO-PFX-4, NANO-PFX-6")(
    own_tokens_only, "hashes not chained for the rules too: the rules hash in the same way"
)
fault(block_manager, "is_hit", on=ELSEWHERE, rules="NANO-PFX-3, NANO-PFX-5")(
    lambda right, pool, key, _check: right(pool, key, HitCheck.NOTHING),
    "hit not checked: a block is taken because the lookup table names it",
)
fault(transitions, "cached_blocks", on=SHARED, rules="NANO-PFX-5")(
    lambda right, *given: right(*given)[:1],
    "first hit only: only the first block of the run is taken",
)
fault(step, "can_allocate", on=DRY, rules="guard NANO-ADM-2")(
    always(True), "memory gate open: the scheduler does not ask for free blocks"
)
fault(
    block_manager, "passes_memory_gate", of="can_allocate", on="shared prefix", rules="NANO-ADM-2"
)(
    lambda right, *given: right(*given[:-1], MemoryGate.NEW_BLOCKS),
    "held hits need no block: held hits are left out, though the gate counts all blocks",
)
fault(step, "can_allocate", on=DRY, rules="NANO-ADM-5")(
    lambda right, ctx, pool, row: right(ctx, one_block_less(pool), row),
    "memory gate too narrow: a block is always kept free",
)
fault(step, "can_append", on=DRY, rules="NANO-PRE-1")(
    lambda right, ctx, pool, row: right(ctx, one_block_less(pool), row),
    "preempted with a block free: the last free block is not seen",
)


def given_back_in_front(before: Any, after: Any) -> Any:
    """The state with the blocks in front that have become free."""
    count = len(before.pool.free)
    return changed(pool=changed(free=lambda free: (*free[count:], *free[:count])))(after)


# --- transitions ----------------------------------------------------------------------------------

fault(transitions, "arrive", on=BUDGET, rules="NANO-LIF-5")(
    result(waiting=last_to_front), "arrives in front: a newcomer goes to the front of the queue"
)
fault(transitions, "abort", on=BUDGET, rules="NANO-BLK-1, NANO-BLK-3, NANO-BLK-6")(
    lambda right, ctx, state, id_: changed(pool=changed(free=state.pool.free))(
        right(ctx, state, id_)
    ),
    "abort loses blocks: blocks of a request whose client goes away are never free again",
)
fault(transitions, "abort", on=BUDGET, rules="NANO-BLK-6, NANO-LIF-5")(
    lambda right, ctx, state, id_: given_back_in_front(state, right(ctx, state, id_)),
    "abort gives back to the front: blocks of a request whose client goes away are handed out next",
)
fault(transitions, "abort", on=BUDGET, rules="NANO-LIF-1")(
    kept("waiting"),
    "aborted and waiting: a request whose client goes away while it waits still waits",
)
fault(transitions, "admit", on=BUDGET, rules="NANO-ADM-4, NANO-ADM-7")(
    lambda right, ctx, state: right(ctx, changed(waiting=last_to_front)(state)),
    "last in first out: the back of waiting is admitted",
)
fault(transitions, "admit", on=BUDGET, rules="NANO-ADM-6, NANO-ADM-7, NANO-DEC-2")(
    result(running=last_to_front),
    "admitted to the front: an admitted sequence goes to the front of running",
)


@fault(transitions, "prefill", on=BUDGET, rules="NANO-LIF-8, NANO-BLK-4, NANO-LIF-9, NANO-PFX-1")
def last_token_not_computed(right: Wrong, ctx: Any, state: Any, count: int) -> Any:
    """A prefill leaves the last token of each sequence out."""
    after, events = right(ctx, state, count)
    kept = len(after.running) - count
    rows = tuple(evolve(row, computed=row.computed - 1) for row in after.running[kept:])
    return evolve(after, running=(*after.running[:kept], *rows)), events


fault(transitions, "append", on=BUDGET, rules="NANO-PFX-11, guard NANO-SLT-1")(
    lambda _right, _ctx, state, _row: (state, ()),
    "no new block: no sequence gets a block while decoding",
)


@fault(transitions, "append", on=BUDGET, rules="NANO-BLK-5, NANO-DEC-3")
def two_new_blocks(right: Wrong, ctx: Any, state: Any, row: Any) -> Any:
    """A new block is handed out in each step."""
    reading = evolve(ctx.config, block_size=2)
    after, events = right(evolve(ctx, config=reading), state, row)
    if events:
        return after, events
    pool, fresh = block_manager.take(after.pool, 1)
    rows = tuple(
        evolve(other, blocks=(*other.blocks, *fresh)) if other.id == row.id else other
        for other in after.running
    )
    return evolve(after, pool=pool, running=rows), events


fault(transitions, "append", on=DRY, rules="NANO-PFX-1, NANO-PFX-11")(
    depending(
        lambda _ctx, state, _row: changed(
            pool=changed(keys=lambda keys: without(keys, *keys.keys() - state.pool.keys.keys()))
        )
    ),
    "filled block not hashed: a block that decoding fills is not hashed",
)
fault(transitions, "preempt", on=DRY, rules="NANO-ADM-7, NANO-PRE-5")(
    result(waiting=first_to_back), "victim waits behind: a victim goes to the back of waiting"
)
fault(transitions, "preempt", on=DRY, rules="NANO-LIF-10, NANO-LIF-9, NANO-PRE-5")(
    depending(
        lambda ctx, _state, row: changed(
            waiting=first(generated=0, prefill_len=ctx.requests[row.id].prompt_len)
        )
    ),
    "victim loses its answer: a victim starts again from its prompt",
)
fault(
    transitions,
    "preempt",
    on=DRY,
    rules="NANO-BLK-2, NANO-BLK-4, NANO-LIF-10, NANO-LIF-4, NANO-PFX-1, NANO-PRE-5",
)(
    lambda right, ctx, state, row: result(waiting=first(blocks=row.blocks))(right, ctx, state, row),
    "victim keeps its table: a victim's block table is not cleared",
)
fault(transitions, "decode", on=BUDGET, rules="NANO-LIF-9, NANO-LIF-3")(
    result(running=first(generated=plus(1))),
    "two tokens at once: a sequence gets two tokens for one computation",
)
fault(transitions, "finish", on=BUDGET, rules="NANO-ADM-7, NANO-DEC-2")(
    result(running=backwards), "put back in reverse: the running queue is put back in reverse"
)


@fault(transitions, "finish", on=BUDGET, rules="NANO-LIF-3")
def one_token_too_many(right: Wrong, ctx: Any, state: Any, batch: Any, ends: Any) -> Any:
    """A sequence leaves a step after it had all its tokens."""
    full = {row.id for row in batch if row.generated == ctx.requests[row.id].max_tokens}
    late = tuple(row for row in batch if row.id not in full)
    return right(ctx, state, late, ends)


fault(transitions, "finish", on="preemption", rules="NANO-LIF-3")(
    lambda right, ctx, state, batch, _ends: right(ctx, state, batch, lambda _row: False),
    "end ignored: a sequence goes on after it has sampled the end of sequence",
)


@fault(
    transitions,
    "finish",
    on=BUDGET,
    rules="NANO-LIF-2, NANO-ADM-7, NANO-BLK-2, NANO-BLK-3, NANO-DEC-2",
)
def neighbour_forgotten(right: Wrong, ctx: Any, state: Any, batch: Any, ends: Any) -> Any:
    """When a sequence finishes, the front of running is lost with it."""
    after, events = right(ctx, state, batch, ends)
    return (evolve(after, running=after.running[1:]) if events else after), events


fault(
    transitions, "skips_prefill", of="is_decoded_first", on=DECODED, rules="NANO-ADM-6, NANO-PFX-8"
)(always(False), "in a prefill all the same: a prompt cached as a whole is prefilled with nothing")
fault(
    transitions,
    "skips_prefill",
    of="is_decoded_first",
    on=DECODED,
    rules="NANO-ADM-6, NANO-BLK-4, NANO-LIF-8",
)(
    lambda right, length, cached, reading: cached > 0,
    "decoded too early: a prompt that is cached in part is in no prefill",
)

# --- schedule() -----------------------------------------------------------------------------------

fault(step, "within_budget", of="schedule", on=BUDGET, rules="NANO-ADM-1")(
    always(True), "token gate open: the budget is not looked at"
)
fault(step, "admission_refusal", of="schedule", on=BUDGET, rules="NANO-ADM-3")(
    configured(max_num_seqs=9), "sequence gate open: the sequence limit is not looked at"
)
fault(step, "admission_refusal", of="schedule", on=BUDGET, rules="NANO-ADM-5")(
    lambda right, ctx, state, count, used: "enough" if count else right(ctx, state, count, used),
    "one admission a step: a prefill step admits one sequence only",
)
fault(step, "_admissions", of="schedule", on=BUDGET, rules="NANO-ADM-5")(
    lambda right, ctx, state: step.Schedule(state, True, 0) if state.running else right(ctx, state),
    "decode first: no sequence is admitted while one runs",
)


@fault(step, "schedule", on=BUDGET, rules="NANO-LIF-7, NANO-ADM-5")
def idle_though_one_waits(right: Wrong, ctx: Any, state: Any) -> Any:
    """A lone sequence that waits is not looked at."""
    alone = len(state.waiting) == 1 and not state.running
    return step.Schedule(state, True, 0, refusal="NANO-ADM-1") if alone else right(ctx, state)


@fault(
    step,
    "_admissions",
    of="schedule",
    on=BUDGET,
    rules="NANO-ADM-6, NANO-LIF-8, NANO-LIF-9, NANO-PFX-8",
)
def decode_in_a_prefill_step(right: Wrong, ctx: Any, state: Any) -> Any:
    """The last running sequence is computed along with the admitted."""
    planned = right(ctx, state)
    mixed = planned.count and state.running
    return evolve(planned, count=planned.count + 1) if mixed else planned


fault(
    step,
    "_decode_batch",
    of="schedule",
    on=BUDGET,
    rules="NANO-BLK-4, NANO-DEC-1, NANO-DEC-5, NANO-PFX-1, NANO-PFX-11",
)(
    result(count=lambda count: max(count - 1, 1)),
    "one row left out: a decode step takes one sequence less than there are",
)
fault(
    transitions,
    "preempt",
    of="schedule",
    on=DRY,
    rules="NANO-ADM-7, NANO-BLK-2, NANO-LIF-10, NANO-PFX-1, NANO-PFX-11, NANO-PRE-2, "
    "guard NANO-SLT-1",
)(
    lambda right, ctx, state, row: right(
        ctx, state, state.running[1] if len(state.running) == 3 else row
    ),
    "last but one goes: of three the one in the middle is the victim",
)


@fault(step, "_make_room", of="preempt", on=DRY, rules="NANO-PRE-1")
def needless_victim(right: Wrong, run: Any, row: Any) -> None:
    """Where no block is free the back of running goes, though no sequence needs a block."""
    first = row is run.state.running[0] and len(run.state.running) > 1
    if first and not run.state.pool.free:
        run.take(transitions.preempt, run.state.running[-1])
    right(run, row)


fault(formulas, "captured_sizes", of="graph", on=SHARED, rules="NANO-DEC-4")(
    lambda right, *given: right(*given)[:-1],
    "no graph for three: the largest batch is not captured",
)
