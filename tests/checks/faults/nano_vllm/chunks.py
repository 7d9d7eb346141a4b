"""Faults of prefills that are cut, and of hashes that follow the computation."""

from typing import Any

from reference.nano_vllm import block_manager, step, transitions
from tests.checks.faults.nano_vllm.table import CUT, CUT_SHARED, FORGOTTEN, fault
from tests.checks.faults.patches import Wrong, always, first, first_to_back, result

fault(transitions, "finish", on=CUT, rules="NANO-CHK-1, NANO-ADM-7, NANO-CHK-3, NANO-DEC-2")(
    result(waiting=first_to_back), "cut and sent back: a prefill that is cut loses its place"
)
fault(transitions, "chunk", on=CUT, rules="NANO-CHK-3, NANO-LIF-9")(
    lambda right, ctx, state, tokens: right(ctx, state, tokens - 1),
    "cut too short: a prefill that is cut leaves a token of the budget",
)
fault(step, "is_cut", of="chunk", on=CUT, rules="guard NANO-CHK-3")(
    lambda right, missing, room, reading: right(missing, room - 1, reading),
    "cut though it fits: a prefill is cut where the budget is just enough",
)
fault(step, "is_cut", of="chunk", on=CUT, rules="NANO-ADM-1, NANO-LIF-9")(
    always(False), "not cut: a prefill computes more than the budget"
)


@fault(
    step,
    "admission_refusal",
    of="chunk",
    on=CUT,
    rules="NANO-CHK-2, NANO-ADM-6",
)
def rest_waits(right: Wrong, ctx: Any, state: Any, count: int, batched: int) -> Any:
    """A prefill that was cut goes on only where no sequence runs."""
    if state.waiting[0].blocks and state.running:
        return "NANO-ADM-1"
    return right(ctx, state, count, batched)


fault(transitions, "hash_computed", on=CUT_SHARED, rules="NANO-PFX-1, NANO-PFX-11")(
    lambda _right, _ctx, state, *_: (state, ()), "computed and not hashed: no block gets a hash"
)
fault(transitions, "hash_computed", on=CUT_SHARED, rules="NANO-PFX-11")(
    lambda right, ctx, state, batch, starts: right(ctx, state, batch, dict.fromkeys(starts, 0)),
    "hashed again: every part of a prefill hashes the blocks before it",
)
fault(block_manager, "forget", on=FORGOTTEN, rules="NANO-PFX-12, NANO-PFX-11")(
    lambda _right, pool, _blocks: pool,
    "nothing forgotten: the lookup table still names a block that is handed out again",
)
fault(block_manager, "allocated", on=FORGOTTEN, rules="NANO-PFX-11")(
    lambda right, ctx, pool, count: right(ctx, block_manager.forget(pool, pool.free), count),
    "all forgotten: where a block is handed out, the lookup table forgets all that are free",
)
fault(transitions, "begin", on=CUT, rules="NANO-ADM-1, NANO-LIF-9")(
    result(waiting=first(computed=0)),
    "begun from the start: a prefill that was cut computes its first token once more",
)
