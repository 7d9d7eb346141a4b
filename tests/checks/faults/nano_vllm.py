"""Planted faults of the nano-vLLM machine: wrong versions, to be switched in one at a time."""

from typing import Any

from attrs import evolve

from checks.explore.instance import Instance
from checks.policies import POLICIES
from reference.nano_vllm import block_manager, machine, step, transitions
from spec.core import requests
from spec.core.requests import Prompt, Request
from spec.nano_vllm import block_hashes, formulas
from spec.nano_vllm.config import HitCheck, MemoryGate, repaired
from tests.checks.faults.planting import FaultTable, Right

SHARED, BUDGET = "repaired, shared prefix", "repaired, budget"
DRY, ELSEWHERE = "repaired, preemption", "repaired, same block elsewhere"
FALSE_PREFIX = Instance(
    name="a false prefix",
    about="the second block of a prompt has the tokens of another prompt's first",
    config=repaired(block_size=2, max_num_batched_tokens=10, max_model_len=10, num_blocks=8),
    requests=(
        Request(id="0", prompt=Prompt.of_tokens((7, 7, 1, 1, 8)), max_tokens=3),
        Request(id="1", prompt=Prompt.of_tokens((1, 1, 9)), max_tokens=3),
    ),
)
PREFIX = FALSE_PREFIX.name

FAULTS = FaultTable(POLICIES["nano-vllm"], [FALSE_PREFIX])
fault = FAULTS.fault

# --- block manager ------------------------------------------------------------------------------


@fault(machine, "new_pool", on=BUDGET, caught_by="NANO-BLK-1, NANO-BLK-3")
def a_block_is_missing(right: Right, size: int) -> Any:
    """The pool starts without its last block."""
    return evolve(right(size), free=tuple(range(size - 1)))


@fault(transitions, "take", on=BUDGET, caught_by="NANO-BLK-5")
def handed_out_from_the_tail(right: Right, pool: Any, count: int) -> Any:
    """Blocks are handed out from the tail of the free list."""
    pool, blocks = right(evolve(pool, free=pool.free[::-1]), count)
    return evolve(pool, free=pool.free[::-1]), blocks


@fault(transitions, "take", on=BUDGET, caught_by="NANO-BLK-1, NANO-BLK-3, NANO-BLK-5")
def handed_out_and_free(right: Right, pool: Any, count: int) -> Any:
    """Blocks that are handed out stay in the free list."""
    taken, blocks = right(pool, count)
    return evolve(taken, free=pool.free), blocks


@fault(
    transitions,
    "take",
    on=BUDGET,
    caught_by="NANO-BLK-2, NANO-BLK-1, NANO-BLK-3, NANO-BLK-4, NANO-BLK-5, "
    "NANO-PFX-1, NANO-PFX-2, NANO-SLT-1",
)
def one_block_for_all(right: Right, pool: Any, count: int) -> Any:
    """A sequence gets the same block for all its places."""
    pool, blocks = right(pool, count)
    return pool, blocks[:1] * count


@fault(transitions, "take", on=DRY, caught_by="NANO-PFX-1")
def old_hash_stays(right: Right, pool: Any, count: int) -> Any:
    """A block that is handed out anew keeps its old hash."""
    taken, blocks = right(pool, count)
    return evolve(taken, keys=pool.keys), blocks


@fault(transitions, "register", on=BUDGET, caught_by="NANO-PFX-1")
def named_and_not_hashed(right: Right, pool: Any, blocks: Any, keys: Any) -> Any:
    """The lookup table names a block that does not carry the hash."""
    return evolve(right(pool, blocks, keys), keys=pool.keys)


@fault(transitions, "share", on=SHARED, caught_by="NANO-BLK-2, guard NANO-BLK-2, NANO-BLK-5")
def second_holder_not_counted(right: Right, pool: Any, blocks: Any, keys: Any) -> Any:
    """Whoever takes a block that is held already is not counted."""
    once = pool.references.set(dict.fromkeys(blocks, 1))
    return evolve(right(pool, blocks, keys), references=once)


@fault(transitions, "share", on=SHARED, caught_by="NANO-BLK-1, NANO-BLK-3, NANO-BLK-5")
def revived_and_free(right: Right, pool: Any, blocks: Any, keys: Any) -> Any:
    """A cached block that is taken again stays in the free list."""
    return evolve(right(pool, blocks, keys), free=pool.free)


@fault(transitions, "deallocate", on=BUDGET, caught_by="NANO-BLK-5")
def given_back_head_first(right: Right, pool: Any, blocks: Any) -> Any:
    """A table is given back with its first block first."""
    return right(pool, blocks[::-1])


@fault(
    transitions, "deallocate", on=SHARED, caught_by="NANO-BLK-2, NANO-BLK-1, NANO-BLK-3, NANO-BLK-5"
)
def freed_by_the_first_holder(right: Right, pool: Any, blocks: Any) -> Any:
    """Blocks are freed although somebody else holds them."""
    alone = pool.references.set(dict.fromkeys(blocks, 1))
    return right(evolve(pool, references=alone), blocks)


@fault(transitions, "block_keys", on=PREFIX, caught_by="NANO-PFX-2")
def hashes_not_chained(right: Right, ctx: Any, sequence: Any, count: int) -> Any:
    """A block's hash covers its own tokens only."""
    return [block_hashes.content(key) for key in right(ctx, sequence, count)]


@fault(requests, "blake2b", of="block_keys", on=PREFIX, caught_by="NANO-PFX-4, NANO-PFX-6")
def hashes_not_chained_and_no_rule_knows(right: Right, data: bytes, *, digest_size: int) -> Any:
    """As before, and whoever judges works hashes out in the same way."""
    return right(data[-2 * 8 :], digest_size=digest_size)


@fault(block_manager, "is_hit", on=ELSEWHERE, caught_by="NANO-PFX-3, NANO-PFX-5")
def hit_not_checked(right: Right, pool: Any, key: Any, _check: Any) -> Any:
    """A block is taken because the lookup table names it."""
    return right(pool, key, HitCheck.NOTHING)


@fault(transitions, "cached_blocks", on=SHARED, caught_by="NANO-PFX-5")
def first_hit_only(right: Right, *given: Any) -> Any:
    """Only the first block of the run is taken."""
    return right(*given)[:1]


@fault(step, "can_allocate", on=DRY, caught_by="guard NANO-ADM-2")
def memory_gate_open(_right: Right, *_given: Any) -> bool:
    """The scheduler does not ask for free blocks."""
    return True


@fault(
    block_manager,
    "passes_memory_gate",
    of="can_allocate",
    on="shared prefix",
    caught_by="NANO-ADM-2",
)
def held_hits_need_no_block(right: Right, free: Any, blocks: Any, shared: Any, _gate: Any) -> Any:
    """What others hold already is left out, though the gate is to count all blocks."""
    return right(free, blocks, shared, MemoryGate.NEW_BLOCKS)


@fault(step, "can_allocate", on=DRY, caught_by="NANO-ADM-5")
def memory_gate_too_narrow(right: Right, ctx: Any, pool: Any, sequence: Any) -> Any:
    """A block is always kept free."""
    return right(ctx, evolve(pool, free=pool.free[1:]), sequence)


@fault(step, "can_append", on=DRY, caught_by="NANO-PRE-1")
def preempted_with_a_block_free(right: Right, ctx: Any, pool: Any, row: Any) -> Any:
    """The last free block is not seen."""
    return right(ctx, evolve(pool, free=pool.free[1:]), row)


# --- transitions ----------------------------------------------------------------------------------


@fault(transitions, "arrive", on=BUDGET, caught_by="NANO-LIF-5")
def arrives_in_front(right: Right, ctx: Any, state: Any, request_id: str) -> Any:
    """A newcomer goes to the front of the queue."""
    after = right(ctx, state, request_id)
    return evolve(after, waiting=(after.waiting[-1], *after.waiting[:-1]))


@fault(transitions, "abort", on=BUDGET, caught_by="NANO-BLK-1, NANO-BLK-3, NANO-BLK-6")
def abort_loses_blocks(right: Right, ctx: Any, state: Any, request_id: str) -> Any:
    """Blocks of somebody who goes away are never free again."""
    return evolve(
        after := right(ctx, state, request_id), pool=evolve(after.pool, free=state.pool.free)
    )


@fault(transitions, "abort", on=BUDGET, caught_by="NANO-BLK-6")
def abort_gives_back_to_the_front(right: Right, ctx: Any, state: Any, request_id: str) -> Any:
    """Blocks of somebody who goes away are handed out next."""
    after = right(ctx, state, request_id)
    count = len(state.pool.free)
    free = (*after.pool.free[count:], *after.pool.free[:count])
    return evolve(after, pool=evolve(after.pool, free=free))


@fault(transitions, "abort", on=BUDGET, caught_by="NANO-LIF-1")
def aborted_and_waiting(right: Right, ctx: Any, state: Any, request_id: str) -> Any:
    """Somebody who goes away while waiting still waits."""
    return evolve(right(ctx, state, request_id), waiting=state.waiting)


@fault(transitions, "admit", on=BUDGET, caught_by="NANO-ADM-4, NANO-ADM-7")
def last_in_first_out(right: Right, ctx: Any, state: Any) -> Any:
    """The back of waiting is admitted."""
    turned = evolve(state, waiting=(state.waiting[-1], *state.waiting[:-1]))
    return right(ctx, turned)


@fault(transitions, "admit", on=BUDGET, caught_by="NANO-ADM-6, NANO-ADM-7, NANO-DEC-2")
def admitted_to_the_front(right: Right, ctx: Any, state: Any) -> Any:
    """Whoever is admitted goes to the front of running."""
    after, events = right(ctx, state)
    running = (after.running[-1], *after.running[:-1])
    return evolve(after, running=running), events


@fault(
    transitions, "prefill", on=BUDGET, caught_by="NANO-LIF-8, NANO-BLK-4, NANO-LIF-9, NANO-PFX-1"
)
def last_token_not_computed(right: Right, ctx: Any, state: Any, count: int) -> Any:
    """A prefill leaves the last token of each sequence out."""
    after, events = right(ctx, state, count)
    kept = len(after.running) - count
    rows = tuple(evolve(row, computed=row.computed - 1) for row in after.running[kept:])
    return evolve(after, running=(*after.running[:kept], *rows)), events


@fault(transitions, "append", on=BUDGET, caught_by="guard NANO-SLT-1")
def no_new_block(_right: Right, _ctx: Any, state: Any, _row: Any) -> Any:
    """Nobody is handed a block while decoding."""
    return state, ()


@fault(transitions, "append", on=BUDGET, caught_by="NANO-BLK-5, NANO-DEC-3")
def two_new_blocks(right: Right, ctx: Any, state: Any, row: Any) -> Any:
    """A new block is handed out in each step."""
    reading = evolve(ctx.config, block_size=2)
    after, events = right(evolve(ctx, config=reading), state, row)
    if events:
        return after, events
    pool, fresh = block_manager.take(after.pool, 1)
    rows = tuple(
        evolve(one, blocks=(*one.blocks, *fresh)) if one.id == row.id else one
        for one in after.running
    )
    return evolve(after, pool=pool, running=rows), events


@fault(transitions, "append", on=DRY, caught_by="NANO-PFX-1")
def filled_block_not_hashed(right: Right, ctx: Any, state: Any, row: Any) -> Any:
    """A block that decoding fills is not hashed."""
    after, events = right(ctx, state, row)
    return evolve(
        after,
        pool=evolve(
            after.pool,
            keys=after.pool.keys.without(*after.pool.keys.keys() - state.pool.keys.keys()),
        ),
    ), events


@fault(transitions, "preempt", on=DRY, caught_by="NANO-ADM-7, NANO-PRE-5")
def victim_waits_behind(right: Right, ctx: Any, state: Any, victim: Any) -> Any:
    """A victim goes to the back of waiting."""
    after, events = right(ctx, state, victim)
    return evolve(after, waiting=(*after.waiting[1:], after.waiting[0])), events


@fault(transitions, "preempt", on=DRY, caught_by="NANO-LIF-9, NANO-PRE-5")
def victim_loses_its_answer(right: Right, ctx: Any, state: Any, victim: Any) -> Any:
    """A victim starts again from its prompt."""
    after, events = right(ctx, state, victim)
    length = ctx.requests[victim.id].prompt_len
    again = evolve(after.waiting[0], generated=0, prefill_len=length)
    return evolve(after, waiting=(again, *after.waiting[1:])), events


@fault(transitions, "preempt", on=DRY, caught_by="NANO-LIF-4, NANO-BLK-2, NANO-PRE-5")
def victim_keeps_its_table(right: Right, ctx: Any, state: Any, victim: Any) -> Any:
    """A victim's block table is not cleared."""
    after, events = right(ctx, state, victim)
    kept = evolve(after.waiting[0], blocks=victim.blocks)
    return evolve(after, waiting=(kept, *after.waiting[1:])), events


@fault(transitions, "decode", on=BUDGET, caught_by="NANO-LIF-9, NANO-LIF-3")
def two_tokens_at_once(right: Right, ctx: Any, state: Any, count: int) -> Any:
    """A sequence gets two tokens for one computation."""
    after, events = right(ctx, state, count)
    front = evolve(after.running[0], generated=after.running[0].generated + 1)
    return evolve(after, running=(front, *after.running[1:])), events


@fault(transitions, "finish", on=BUDGET, caught_by="NANO-ADM-7, NANO-DEC-2")
def put_back_in_reverse(right: Right, *given: Any) -> Any:
    """The running queue is put back in reverse."""
    after, events = right(*given)
    return evolve(after, running=after.running[::-1]), events


@fault(transitions, "finish", on=BUDGET, caught_by="NANO-LIF-3")
def one_token_too_many(right: Right, ctx: Any, state: Any, batch: Any, ends: Any) -> Any:
    """A sequence leaves a step after it had all its tokens."""
    full = {row.id for row in batch if row.generated == ctx.requests[row.id].max_tokens}
    late = tuple(row for row in batch if row.id not in full)
    return right(ctx, state, late, ends)


@fault(
    transitions,
    "finish",
    on=BUDGET,
    caught_by="NANO-LIF-2, NANO-ADM-7, NANO-BLK-2, NANO-BLK-3, NANO-DEC-2",
)
def neighbour_forgotten(right: Right, ctx: Any, state: Any, batch: Any, ends: Any) -> Any:
    """When somebody finishes, the front of running is lost with it."""
    after, events = right(ctx, state, batch, ends)
    return (evolve(after, running=after.running[1:]) if events else after), events


# --- schedule() -----------------------------------------------------------------------------------


@fault(step, "within_budget", of="schedule", on=BUDGET, caught_by="NANO-ADM-1")
def token_gate_open(_right: Right, *_given: Any) -> bool:
    """The budget is not looked at."""
    return True


@fault(step, "admission_refusal", of="schedule", on=BUDGET, caught_by="NANO-ADM-3")
def sequence_gate_open(right: Right, ctx: Any, *given: Any) -> Any:
    """The sequence limit is not looked at."""
    return right(evolve(ctx, config=evolve(ctx.config, max_num_seqs=9)), *given)


@fault(step, "admission_refusal", of="schedule", on=BUDGET, caught_by="NANO-ADM-5")
def one_admission_a_step(right: Right, ctx: Any, state: Any, count: int, batched: int) -> Any:
    """A prefill step admits one sequence only."""
    return "one is enough" if count else right(ctx, state, count, batched)


@fault(step, "_admissions", of="schedule", on=BUDGET, caught_by="NANO-ADM-5")
def decode_first(right: Right, ctx: Any, state: Any) -> Any:
    """Nobody is admitted while somebody runs."""
    nobody = step.Schedule(state, True, 0)
    return nobody if state.running else right(ctx, state)


@fault(step, "schedule", on=BUDGET, caught_by="NANO-LIF-7, NANO-ADM-5")
def idle_though_somebody_waits(right: Right, ctx: Any, state: Any) -> Any:
    """A lone sequence that waits is not looked at."""
    alone = len(state.waiting) == 1 and not state.running
    return step.Schedule(state, True, 0, refusal="NANO-ADM-1") if alone else right(ctx, state)


@fault(
    step,
    "_admissions",
    of="schedule",
    on=BUDGET,
    caught_by="NANO-ADM-6, NANO-LIF-8, NANO-LIF-9, NANO-PFX-8",
)
def decode_in_a_prefill_step(right: Right, ctx: Any, state: Any) -> Any:
    """The last running sequence is computed along with the admitted."""
    planned = right(ctx, state)
    mixed = planned.count and state.running
    return evolve(planned, count=planned.count + 1) if mixed else planned


@fault(
    step, "_decode_batch", of="schedule", on=BUDGET, caught_by="NANO-DEC-1, NANO-BLK-4, NANO-PFX-1"
)
def one_row_left_out(right: Right, ctx: Any, state: Any, refusal: Any) -> Any:
    """A decode step takes one sequence less than there are."""
    planned = right(ctx, state, refusal)
    return evolve(planned, count=max(planned.count - 1, 1))


@fault(
    transitions,
    "preempt",
    of="schedule",
    on=DRY,
    caught_by="NANO-PRE-2, NANO-ADM-7, NANO-BLK-2, NANO-PFX-1, guard NANO-SLT-1",
)
def last_but_one_goes(right: Right, ctx: Any, state: Any, victim: Any) -> Any:
    """Of three the one in the middle is the victim."""
    return right(ctx, state, state.running[1] if len(state.running) == 3 else victim)


@fault(formulas, "captured_sizes", of="graph", on=SHARED, caught_by="NANO-DEC-4")
def no_graph_for_three(right: Right, largest: int, reading: Any) -> Any:
    """The largest batch is not captured."""
    return right(largest, reading)[:-1]
